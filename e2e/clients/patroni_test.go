//go:build clients

package clients

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// pgSighting is one look at a node.
type pgSighting struct {
	begin, end time.Time
	primary    bool
}

// pgWitness is how often a node was primary, as one witness saw it.
type pgWitness struct {
	name string
	mu   sync.Mutex
	seen []pgSighting
}

func (w *pgWitness) look(primary func() bool) {
	s := pgSighting{begin: time.Now()}
	s.primary = primary()
	s.end = time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, s)
}

// reigns returns the times through which the node was certainly primary: between
// looks that all found it so.
func (w *pgWitness) reigns() []pgSighting {
	w.mu.Lock()
	defer w.mu.Unlock()
	var reigns []pgSighting
	for i, s := range w.seen {
		switch {
		case !s.primary:
		case i > 0 && w.seen[i-1].primary:
			reigns[len(reigns)-1].end = s.begin
		default:
			reigns = append(reigns, pgSighting{begin: s.end, end: s.end})
		}
	}
	return reigns
}

// throughout reports whether every look since a time found the node primary, and
// how many there were.
func (w *pgWitness) throughout(since time.Time) (looks int, all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all = true
	for _, s := range w.seen {
		if s.begin.After(since) {
			looks++
			all = all && s.primary
		}
	}
	return looks, all
}

// pgWitnesses look at all nodes all the time: at what Patroni says of itself, which
// is to have the leader's key, and at what PostgreSQL does, which is to take
// writes.
type pgWitnesses struct {
	patroni, postgres []*pgWitness
}

func (c *pgCluster) witness() (w *pgWitnesses, stop func()) {
	w = &pgWitnesses{}
	var stops []func()
	for _, n := range c.nodes {
		says, does := &pgWitness{name: n.Name}, &pgWitness{name: n.Name}
		w.patroni, w.postgres = append(w.patroni, says), append(w.postgres, does)
		stops = append(stops,
			repeatedly(100*time.Millisecond, func(ctx context.Context) {
				says.look(func() bool { return n.is(ctx, "primary") })
			}),
			repeatedly(200*time.Millisecond, func(ctx context.Context) {
				does.look(func() bool {
					out, err := c.sql(ctx, "select pg_is_in_recovery()", n)
					return err == nil && out == "f"
				})
			}))
	}
	return w, func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// check holds that no two nodes were primary at the same time, and that each was
// seen as it at all.
func (w *pgWitnesses) check(t *testing.T, reigns int) {
	t.Helper()
	for kind, nodes := range map[string][]*pgWitness{"patroni": w.patroni, "postgres": w.postgres} {
		total := 0
		for i, a := range nodes {
			total += len(a.reigns())
			for _, b := range nodes[:i] {
				for _, x := range a.reigns() {
					for _, y := range b.reigns() {
						if x.begin.Before(y.end) && y.begin.Before(x.end) {
							t.Errorf("%s: %s and %s were primaries at the same time: %v-%v and %v-%v",
								kind, a.name, b.name, x.begin, x.end, y.begin, y.end)
						}
					}
				}
			}
		}
		if total < reigns {
			t.Errorf("%s: %d reigns were seen, there were %d", kind, total, reigns)
		}
	}
}

// pgRows writes rows one after another, and knows those that were acknowledged.
type pgRows struct {
	mu    sync.Mutex
	next  int
	acked []int
}

func (l *pgRows) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

func (c *pgCluster) write() (l *pgRows, stop func()) {
	l = &pgRows{}
	return l, repeatedly(50*time.Millisecond, func(ctx context.Context) {
		l.next++
		if _, err := c.sql(ctx, fmt.Sprintf("insert into ledger values (%d)", l.next), c.nodes...); err == nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.acked = append(l.acked, l.next)
		}
	})
}

// goesOn waits for more rows to be acknowledged.
func (c *pgCluster) goesOn(l *pgRows) {
	c.t.Helper()
	before := l.count()
	c.await("more rows", patroniLimit, func() bool { return l.count() >= before+5 })
}

// missing returns the rows acknowledged so far that a node does not have.
func (c *pgCluster) missing(l *pgRows, n *pgNode) []int {
	c.t.Helper()
	l.mu.Lock()
	acked := slices.Clone(l.acked)
	l.mu.Unlock()
	out, err := c.sql(c.t.Context(), "select n from ledger", n)
	if err != nil {
		c.t.Fatal(err)
	}
	have := make(map[int]bool)
	for line := range strings.Lines(out) {
		row, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			c.t.Fatal(err)
		}
		have[row] = true
	}
	var missing []int
	for _, row := range acked {
		if !have[row] {
			missing = append(missing, row)
		}
	}
	return missing
}

// key returns a key of the cluster's as Patroni wrote it.
func (c *pgCluster) key(name string) (created, modified int64, lease clientv3.LeaseID) {
	c.t.Helper()
	resp, err := c.etcd.Get(c.t.Context(), "/service/ledger/"+name)
	if err != nil || len(resp.Kvs) != 1 {
		c.t.Fatalf("key %s: %v, %v", name, resp, err)
	}
	kv := resp.Kvs[0]
	return kv.CreateRevision, kv.ModRevision, clientv3.LeaseID(kv.Lease)
}

// Patroni runs a PostgreSQL cluster by the JSON API: at most one primary at any
// time, no acknowledged row lost, and a crash of the store goes by unnoticed.
func TestOtherPatroni(t *testing.T) {
	for name, auth := range map[string]bool{"open": false, "users": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runPatroni(t, newPGCluster(t, auth))
		})
	}
}

func runPatroni(t *testing.T, c *pgCluster) {
	t.Helper()
	a, b := c.nodes[0], c.nodes[1]
	c.start(a)
	c.await("a is primary", patroniLimit, func() bool { return a.is(t.Context(), "primary") })
	c.start(b)
	c.await("b is a synchronous standby", patroniLimit, func() bool { return b.is(t.Context(), "synchronous") })
	if _, err := c.sql(t.Context(), "create table ledger (n int primary key)", a); err != nil {
		t.Fatal(err)
	}
	seen, stopWitness := c.witness()
	defer stopWitness()
	rows, stopWriting := c.write()
	defer stopWriting()
	c.goesOn(rows)

	rounds := harness.Sized(1, 5)
	for range rounds {
		c.storeCrashes(seen.patroni[0], rows)
		c.failOver(a, b, rows)
		c.switchOver(b, a, rows)
	}
	if full := harness.Sized(0, 1); full == 1 {
		c.storeIsAway(a)
		c.goesOn(rows)
	}
	stopWriting()
	stopWitness()
	seen.check(t, 1+2*rounds)
	for _, n := range c.nodes {
		c.await("all rows on "+n.Name, patroniLimit, func() bool { return len(c.missing(rows, n)) == 0 })
	}
	t.Logf("%d of %d rows acknowledged", rows.count(), rows.next)
}

// storeCrashes kills the store and starts it again before Patroni gives up: the
// primary stays and its key too.
func (c *pgCluster) storeCrashes(primary *pgWitness, rows *pgRows) {
	c.t.Helper()
	created, _, lease := c.key("leader")
	begin := time.Now()
	c.store.Kill()
	<-time.After(patroniRetry * time.Second / 2)
	c.store.Start()
	_, status, _ := c.key("status")
	c.goesOn(rows)
	// The primary writes its position in every round of its loop.
	c.await("Patroni goes on", patroniRetry*time.Second+patroniLimit, func() bool {
		_, now, _ := c.key("status")
		return now > status
	})
	if looks, all := primary.throughout(begin); looks == 0 || !all {
		c.t.Errorf("%s was not primary in all of %d looks over a restart of the store", primary.name, looks)
	}
	if now, _, nowLease := c.key("leader"); now != created || nowLease != lease {
		c.t.Errorf("the leader's key of revision %d and lease %x became %d and %x", created, lease, now, nowLease)
	}
}

// failOver kills the primary: the standby takes over when the TTL is over, not
// before, and has all rows. The old primary comes back as its standby.
func (c *pgCluster) failOver(from, to *pgNode, rows *pgRows) {
	c.t.Helper()
	ctx := c.t.Context()
	c.await(to.Name+" is a synchronous standby", patroniLimit, func() bool { return to.is(ctx, "synchronous") })
	_, _, lease := c.key("leader")
	c.crash(from)
	begin := time.Now()
	left, err := c.etcd.TimeToLive(ctx, lease)
	if err != nil || left.TTL <= 0 {
		c.t.Fatalf("the leader's lease has %v, %v", left, err)
	}
	c.await(to.Name+" takes over", patroniTTL*time.Second+patroniLimit, func() bool { return to.is(ctx, "primary") })
	took := time.Since(begin)
	if early := time.Duration(left.TTL) * time.Second; took < early {
		c.t.Errorf("%s took over after %v, the lease had %v", to.Name, took, early)
	}
	// Its loop, a look at the other node, and the promotion.
	if late := (patroniTTL + 2*patroniLoop + 2*patroniRetry) * time.Second; took > late {
		c.t.Errorf("%s took over after %v, more than %v", to.Name, took, late)
	}
	if missing := c.missing(rows, to); len(missing) > 0 {
		c.t.Errorf("%s lost the acknowledged rows %v", to.Name, missing)
	}
	c.goesOn(rows)
	c.start(from)
	c.await(from.Name+" is a synchronous standby", patroniLimit, func() bool { return from.is(ctx, "synchronous") })
}

// switchOver hands the lead to the standby by patronictl.
func (c *pgCluster) switchOver(from, to *pgNode, rows *pgRows) {
	c.t.Helper()
	ctx := c.t.Context()
	out, err := c.command(ctx, from, "/usr/bin/patronictl", "-c", from.file("patroni.yml"),
		"switchover", "ledger", "--leader", from.Name, "--candidate", to.Name, "--force").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Successfully switched over") {
		c.t.Fatalf("switchover: %v: %s", err, out)
	}
	c.await(to.Name+" is primary", patroniLimit, func() bool { return to.is(ctx, "primary") })
	if missing := c.missing(rows, to); len(missing) > 0 {
		c.t.Errorf("%s lost the acknowledged rows %v", to.Name, missing)
	}
	c.await(from.Name+" is a synchronous standby", patroniLimit, func() bool { return from.is(ctx, "synchronous") })
	c.goesOn(rows)
}

// storeIsAway keeps the store away for longer than Patroni is patient: the primary
// steps down, and there is one again when the store is back.
func (c *pgCluster) storeIsAway(primary *pgNode) {
	c.t.Helper()
	c.store.Kill()
	c.await(primary.Name+" steps down", patroniTTL*time.Second+patroniLimit, func() bool { return !primary.is(c.t.Context(), "primary") })
	c.store.Start()
	c.await("a primary", patroniTTL*time.Second+patroniLimit, func() bool {
		return slices.ContainsFunc(c.nodes, func(n *pgNode) bool { return n.is(c.t.Context(), "primary") })
	})
}
