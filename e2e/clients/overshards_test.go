package clients

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// What clients of etcd do with keys in several directories is done, with one revision for each
// write, where the directories lie on different shards.
func TestWritesOverShards(t *testing.T) {
	t.Parallel()
	for name, story := range map[string]struct {
		splits string
		run    func(*testing.T, *harness.Process, *clientv3.Client)
	}{
		"mirror":                {"config/,jobs/,workers/", mirrorsTheEndOfALease},
		"catalogue":             {"by-dev/meta/root-coord/fields,by-dev/meta/root-coord/partitions,by-dev/meta/snapshots", keepsCatalogueAndSnapshots},
		"identities":            {identities + "id/15," + identities + "locks," + identities + "value", allocatesIdentities},
		"delete everything":     {"b,c,d", deletesEverything},
		"delete a tree":         {"tree/b,tree/c,tree/d/", deletesATree},
		"nested reads":          {"b,c,d", readsInNestedTransactions},
		"inverted range":        {"b,c,d", putsBesideInvertedRanges},
		"guarded by a lock":     {"lock/,m,n", writesUnderALock},
		"leases in directories": {"b,c,d", attachesOverShards},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := harness.NewProcess(t, harness.SplitsFlag, story.splits)
			c := p.Client()
			defer c.Close()
			story.run(t, p, c)
		})
	}
}

// oneRevision waits for n events from a revision on and fails unless they are all of one.
func oneRevision(t *testing.T, c *clientv3.Client, from int64, n int) []*clientv3.Event {
	t.Helper()
	events := eventsFrom(t, c, from, n)
	for _, e := range events {
		if e.Kv.ModRevision != events[0].Kv.ModRevision {
			t.Errorf("%q changed at revision %d, %q at %d", e.Kv.Key, e.Kv.ModRevision, events[0].Kv.Key, events[0].Kv.ModRevision)
		}
	}
	return events
}

// eventsFrom waits for n events from a revision on.
func eventsFrom(t *testing.T, c *clientv3.Client, from int64, n int) []*clientv3.Event {
	t.Helper()
	var events []*clientv3.Event
	watch := c.Watch(t.Context(), "", clientv3.WithPrefix(), clientv3.WithRev(from), clientv3.WithPrevKV())
	for len(events) < n {
		select {
		case r := <-watch:
			harness.Must(t, "watch", r.Err())
			events = append(events, r.Events...)
		case <-time.After(harness.LongWait):
			t.Fatalf("%d of %d events came", len(events), n)
		}
	}
	if len(events) > n {
		t.Errorf("%d events came, want %d: %v", len(events), n, events)
	}
	return events
}

// keysOf returns all keys of a store.
func keysOf(t *testing.T, c *clientv3.Client) []string {
	t.Helper()
	r, err := c.Get(t.Context(), "", clientv3.WithPrefix())
	harness.Must(t, "keys", err)
	var found []string
	for _, kv := range r.Kvs {
		found = append(found, string(kv.Key))
	}
	return found
}

// etcdctl make-mirror goes on over the end of a lease with keys in two directories, and other
// transactions, each of which it writes as one.
func mirrorsTheEndOfALease(t *testing.T, p *harness.Process, c *clientv3.Client) {
	t.Helper()
	source := harness.NewProcess(t, harness.SplitsFlag, "")
	from := source.Client()
	defer from.Close()
	lease, err := from.Grant(t.Context(), 1000)
	harness.Must(t, "grant", err)
	for _, key := range []string{"jobs/1", "workers/1"} {
		_, err := from.Put(t.Context(), key, "v", clientv3.WithLease(lease.ID))
		harness.Must(t, "put", err)
	}
	newCtl(t, source).follow("make-mirror", p.Addr)
	copied := eventsFrom(t, c, 1, 2)
	_, err = from.Revoke(t.Context(), lease.ID)
	harness.Must(t, "revoke", err)
	gone := oneRevision(t, c, copied[1].Kv.ModRevision+1, 2)
	_, err = from.Txn(t.Context()).Then(
		clientv3.OpPut("config/a", "v"), clientv3.OpPut("jobs/2", "v"), clientv3.OpPut("workers/2", "v"),
	).Commit()
	harness.Must(t, "transaction", err)
	oneRevision(t, c, gone[0].Kv.ModRevision+1, 3)
	if got := strings.Join(keysOf(t, c), " "); got != "config/a jobs/2 workers/2" {
		t.Errorf("the mirror has %q", got)
	}
}

// A catalogue keeps each record under its key and, with a time, under a prefix of snapshots, as
// Milvus does: collections are made and dropped by transactions over all of that.
func keepsCatalogueAndSnapshots(t *testing.T, _ *harness.Process, c *clientv3.Client) {
	t.Helper()
	const collections, fields = 12, 5
	records := func(id int) (found []string) {
		for f := range fields {
			found = append(found, fmt.Sprintf("fields/%d/%d", id, f))
		}
		return append(found, fmt.Sprintf("collection/%d", id), fmt.Sprintf("partitions/%d/0", id))
	}
	const meta, snapshots = "by-dev/meta/root-coord/", "by-dev/meta/snapshots/root-coord/"
	save := func(id int, ts string, value string) (*clientv3.TxnResponse, error) {
		var ops []clientv3.Op
		for _, r := range records(id) {
			ops = append(ops, clientv3.OpPut(meta+r, value), clientv3.OpPut(snapshots+r+"_ts"+ts, value))
		}
		return c.Txn(t.Context()).Then(ops...).Commit()
	}
	var wg sync.WaitGroup
	for id := range collections {
		wg.Go(func() {
			if _, err := save(id, "1", "made"); err != nil {
				t.Errorf("create collection %d: %v", id, err)
			}
			if id%2 == 0 {
				return
			}
			var ops []clientv3.Op
			for _, r := range records(id) {
				ops = append(ops, clientv3.OpDelete(meta+r), clientv3.OpPut(snapshots+r+"_ts2", "tombstone"))
			}
			if _, err := c.Txn(t.Context()).Then(ops...).Commit(); err != nil {
				t.Errorf("drop collection %d: %v", id, err)
			}
		})
	}
	wg.Wait()
	r, err := c.Get(t.Context(), "by-dev/", clientv3.WithPrefix())
	harness.Must(t, "catalogue", err)
	revisions, left := make(map[string]int64), 0
	for _, kv := range r.Kvs {
		revisions[string(kv.Key)] = kv.ModRevision
	}
	for id := range collections {
		all := records(id)
		ts := "_ts" + fmt.Sprint(1+id%2)
		for _, r := range all {
			if revisions[snapshots+r+ts] == 0 || revisions[snapshots+r+ts] != revisions[snapshots+all[0]+ts] {
				t.Errorf("collection %d: %s is of revision %d", id, r, revisions[snapshots+r+ts])
			}
			if at := revisions[meta+r]; at != 0 {
				left++
				if at != revisions[snapshots+r+"_ts1"] {
					t.Errorf("collection %d: %s is of revision %d, its snapshot of %d", id, r, at, revisions[snapshots+r+"_ts1"])
				}
			}
		}
	}
	if want := collections / 2 * (fields + 2); left != want {
		t.Errorf("%d records are in the catalogue, want %d", left, want)
	}
}

const identities = "cilium/state/identities/v1/"

// Thirty identities are allocated at once as Cilium does it: under a lock, an id that is free and
// a reference to it by value, each guarded by the lock.
func allocatesIdentities(t *testing.T, p *harness.Process, _ *clientv3.Client) {
	t.Helper()
	const agents = 30
	var mu sync.Mutex
	allocated := make(map[string]string)
	var wg sync.WaitGroup
	for agent := range agents {
		wg.Go(func() {
			c := p.Client()
			defer c.Close()
			labels := fmt.Sprintf("labels%02d", agent)
			id, err := allocate(t, c, labels, agents)
			if err != nil {
				t.Errorf("allocate %s: %v", labels, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if other, taken := allocated[id]; taken {
				t.Errorf("identity %s is that of %s and of %s", id, other, labels)
			}
			allocated[id] = labels
		})
	}
	wg.Wait()
	c := p.Client()
	defer c.Close()
	for id, labels := range allocated {
		if got := value(t, c, identities+"id/"+id); got != labels {
			t.Errorf("identity %s has %q, want %q", id, got, labels)
		}
		if got := value(t, c, identities+"value/"+labels+"/node"); got != id {
			t.Errorf("%s has identity %q, want %q", labels, got, id)
		}
	}
	if len(allocated) != agents {
		t.Errorf("%d identities of %d", len(allocated), agents)
	}
}

// allocate allocates one of so many ids to labels.
func allocate(t *testing.T, c *clientv3.Client, labels string, ids int) (id string, err error) {
	t.Helper()
	session, err := concurrency.NewSession(c)
	if err != nil {
		return "", err
	}
	defer session.Orphan()
	lock := concurrency.NewMutex(session, identities+"locks/"+labels)
	if err := lock.Lock(t.Context()); err != nil {
		return "", err
	}
	for range ids {
		used, err := c.Get(t.Context(), identities+"id/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			return "", err
		}
		id = fmt.Sprintf("%02d", free(used, ids))
		key := identities + "id/" + id
		made, err := c.Txn(t.Context()).If(clientv3.Compare(clientv3.Version(key), "=", 0), lock.IsOwner()).
			Then(clientv3.OpPut(key, labels)).Commit()
		if err != nil {
			return "", err
		}
		if !made.Succeeded {
			continue // another agent was faster
		}
		referred, err := c.Txn(t.Context()).If(lock.IsOwner()).
			Then(clientv3.OpPut(identities+"value/"+labels+"/node", id, clientv3.WithLease(session.Lease()))).Commit()
		if err == nil && !referred.Succeeded {
			err = errors.New("the lock is lost")
		}
		if err != nil {
			return "", err
		}
		if err := lock.Unlock(t.Context()); err != nil {
			return "", err
		}
		late, err := c.Txn(t.Context()).If(lock.IsOwner()).Then(clientv3.OpPut(key, "late")).Commit()
		if err == nil && late.Succeeded {
			err = errors.New("a write passed whose lock was given back")
		}
		return id, err
	}
	return "", errors.New("no id is free")
}

// free returns the lowest id that is not used.
func free(used *clientv3.GetResponse, ids int) int {
	for id := range ids {
		if id >= len(used.Kvs) || !strings.HasSuffix(string(used.Kvs[id].Key), fmt.Sprintf("/%02d", id)) {
			return id
		}
	}
	return ids
}

// etcdctl del "" --prefix deletes all at one revision.
func deletesEverything(t *testing.T, p *harness.Process, c *clientv3.Client) {
	t.Helper()
	ctl := newCtl(t, p)
	var last int64
	for _, key := range []string{"a", "b/1", "b/2", "c", "d", "e"} {
		last = put(t, c, key, "of "+key)
	}
	out := ctl.run("^6\n", "del", "", "--prefix", "--prev-kv")
	if want := "6\na\nof a\nb/1\nof b/1\nb/2\nof b/2\nc\nof c\nd\nof d\ne\nof e\n"; out != want {
		t.Errorf("etcdctl printed %q, want %q", out, want)
	}
	for i, e := range oneRevision(t, c, last+1, 6) {
		if want := []string{"a", "b/1", "b/2", "c", "d", "e"}[i]; string(e.Kv.Key) != want || string(e.PrevKv.GetValue()) != "of "+want {
			t.Errorf("event %d is %v", i, e)
		}
	}
	ctl.run("^0\n", "del", "", "--prefix")
	ctl.run("^0\n", "del", "a", "--from-key")
}

// A tree that lies on both sides of splits is deleted at one revision, and nothing beside it.
func deletesATree(t *testing.T, _ *harness.Process, c *clientv3.Client) {
	t.Helper()
	var last int64
	for _, key := range []string{"tree.", "tree/a", "tree/b", "tree/b/1", "tree/c/9", "tree/d/1", "tree0"} {
		last = put(t, c, key, "v")
	}
	r, err := c.Delete(t.Context(), "tree/", clientv3.WithPrefix())
	harness.Must(t, "delete", err)
	if r.Deleted != 5 {
		t.Errorf("%d keys were deleted, want 5", r.Deleted)
	}
	if events := oneRevision(t, c, last+1, 5); events[0].Kv.ModRevision != r.Header.Revision {
		t.Errorf("deleted at revision %d, answered with %d", events[0].Kv.ModRevision, r.Header.Revision)
	}
	if left := keysOf(t, c); strings.Join(left, " ") != "tree. tree0" {
		t.Errorf("%q are left", left)
	}
}

// Nested transactions that only read see one state, and take no revision.
func readsInNestedTransactions(t *testing.T, _ *harness.Process, c *clientv3.Client) {
	t.Helper()
	for _, key := range []string{"a", "b", "c"} {
		put(t, c, key, "v")
	}
	last := put(t, c, "d", "v")
	r, err := c.Txn(t.Context()).If(clientv3.Compare(clientv3.Version("a"), "=", 1), clientv3.Compare(clientv3.Version("d"), "=", 1)).Then(
		clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Version("b"), "=", 1)}, []clientv3.Op{clientv3.OpGet("c")}, nil),
		clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpGet("", clientv3.WithPrefix())}, nil)}, nil),
	).Commit()
	harness.Must(t, "transaction", err)
	inner := r.Responses[1].GetResponseTxn().Responses[0].GetResponseTxn().Responses[0].GetResponseRange()
	if !r.Succeeded || len(r.Responses[0].GetResponseTxn().Responses[0].GetResponseRange().Kvs) != 1 || len(inner.Kvs) != 4 {
		t.Errorf("read %v", r)
	}
	if r.Header.Revision != last {
		t.Errorf("revision %d after %d", r.Header.Revision, last)
	}
	if next := put(t, c, "a", "w"); next != last+1 {
		t.Errorf("the next write has revision %d, want %d", next, last+1)
	}
}

// A range that ends before it begins stands beside a put for nothing.
func putsBesideInvertedRanges(t *testing.T, _ *harness.Process, c *clientv3.Client) {
	t.Helper()
	last := put(t, c, "c/1", "v")
	r, err := c.Txn(t.Context()).Then(
		clientv3.OpPut("a", "v"), clientv3.OpGet("d", clientv3.WithRange("b")), clientv3.OpDelete("e", clientv3.WithRange("a")),
	).Commit()
	harness.Must(t, "transaction", err)
	if r.Header.Revision != last+1 || len(r.Responses[1].GetResponseRange().Kvs) != 0 || r.Responses[2].GetResponseDeleteRange().Deleted != 0 {
		t.Errorf("answered %v after revision %d", r, last)
	}
	if next := put(t, c, "a", "w"); next != last+2 {
		t.Errorf("the next write has revision %d, want %d", next, last+2)
	}
}

// What a lock guards may lie anywhere.
func writesUnderALock(t *testing.T, _ *harness.Process, c *clientv3.Client) {
	t.Helper()
	s, err := concurrency.NewSession(c)
	harness.Must(t, "session", err)
	defer s.Close()
	m := concurrency.NewMutex(s, "lock/1")
	harness.Must(t, "lock", m.Lock(t.Context()))
	guarded := func() bool {
		r, err := c.Txn(t.Context()).If(m.IsOwner()).Then(clientv3.OpPut("a", "v"), clientv3.OpPut("z", "v")).Commit()
		harness.Must(t, "guarded write", err)
		return r.Succeeded
	}
	if !guarded() {
		t.Error("the owner was refused")
	}
	harness.Must(t, "unlock", m.Unlock(t.Context()))
	if guarded() {
		t.Error("who had unlocked was let through")
	}
}

// Keys of one transaction on several shards hang on one lease, and a lease that there is not is
// told of before anything is done.
func attachesOverShards(t *testing.T, _ *harness.Process, c *clientv3.Client) {
	t.Helper()
	lease, err := c.Grant(t.Context(), 1000)
	harness.Must(t, "grant", err)
	attach := func(id clientv3.LeaseID) error {
		_, err := c.Txn(t.Context()).Then(
			clientv3.OpPut("a", "v"), clientv3.OpPut("b", "v", clientv3.WithLease(id)), clientv3.OpPut("d", "v", clientv3.WithLease(id)),
		).Commit()
		return err
	}
	if err := attach(lease.ID + 1); err == nil || err.Error() != "etcdserver: requested lease not found" {
		t.Errorf("a lease that there is not: %v", err)
	}
	if left := keysOf(t, c); len(left) != 0 {
		t.Errorf("a refused transaction left %q", left)
	}
	harness.Must(t, "attach", attach(lease.ID))
	r, err := c.TimeToLive(t.Context(), lease.ID, clientv3.WithAttachedKeys())
	harness.Must(t, "time to live", err)
	if len(r.Keys) != 2 {
		t.Errorf("%q hang on the lease", r.Keys)
	}
	_, err = c.Revoke(t.Context(), lease.ID)
	harness.Must(t, "revoke", err)
	if left := keysOf(t, c); strings.Join(left, " ") != "a" {
		t.Errorf("%q are left", left)
	}
}
