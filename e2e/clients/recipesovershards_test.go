package clients

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"
	"go.etcd.io/etcd/client/v3/leasing"
	"go.etcd.io/etcd/client/v3/mirror"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// etcd's recipes keep what they promise to clients that meet, where what they write together
// lies on four shards.
func TestRecipesOverShards(t *testing.T) {
	t.Parallel()
	for name, recipe := range map[string]struct {
		splits string
		run    func(*testing.T, *harness.Process, *clientv3.Client)
	}{
		"stm":            {"k/1,k/2,k/3", stmOverShards},
		"leasing":        {"k/3,k/6,leases/", leasingOverShards},
		"priority queue": {"p,queue/00002,queue/00003", queuesOverShards},
		"mirror":         {"from/1,from/2,to/2", mirrorsOverShards},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := harness.NewProcess(t, harness.SplitsFlag, recipe.splits)
			c := p.Client()
			defer c.Close()
			recipe.run(t, p, c)
		})
	}
}

// accounts are on a shard each.
const accounts = 4

func account(i int) string { return fmt.Sprintf("k/%d", i%accounts) }

// number returns what an account has as an STM reads it.
func number(s concurrency.STM, key string) int {
	n, err := strconv.Atoi(s.Get(key))
	if err != nil {
		panic(err) // which an STM makes an error of
	}
	return n
}

// balances returns what all accounts have, read at once.
func balances(t *testing.T, c *clientv3.Client) (all []int) {
	t.Helper()
	r, err := c.Get(t.Context(), "k/", clientv3.WithPrefix())
	harness.Must(t, "accounts", err)
	for _, kv := range r.Kvs {
		n, err := strconv.Atoi(string(kv.Value))
		harness.Must(t, "account", err)
		all = append(all, n)
	}
	return all
}

// Software transactions move money between accounts: nothing is made or lost at the levels that
// promise it, a transaction at the level of snapshots sees one state of all accounts, and each
// takes place as a whole at any level.
func stmOverShards(t *testing.T, _ *harness.Process, c *clientv3.Client) {
	t.Helper()
	const clients, rounds, paidIn = 6, 8, 100 * accounts
	for _, level := range []concurrency.Isolation{
		concurrency.SerializableSnapshot, concurrency.Serializable, concurrency.RepeatableReads, concurrency.ReadCommitted,
	} {
		for i := range accounts {
			put(t, c, account(i), "100")
		}
		snapshots := level == concurrency.SerializableSnapshot || level == concurrency.Serializable
		var wg sync.WaitGroup
		for g := range clients {
			wg.Go(func() {
				for n := range rounds {
					run := func(s concurrency.STM) error { return move(s, account(g), account(g+1+n%(accounts-1)), snapshots) }
					if level == concurrency.ReadCommitted {
						run = func(s concurrency.STM) error { return setAll(s, strconv.Itoa(g*rounds+n)) }
					}
					if _, err := concurrency.NewSTM(c, run, concurrency.WithIsolation(level)); err != nil {
						t.Errorf("isolation %d: %v", level, err)
					}
					all := balances(t, c)
					if level == concurrency.ReadCommitted {
						if len(slices.Compact(all)) > 1 {
							t.Errorf("half of a transaction is seen: %v", all)
						}
					} else if got := sum(all); got != paidIn {
						t.Errorf("isolation %d: %d in the accounts, %d were paid in", level, got, paidIn)
					}
				}
			})
		}
		wg.Wait()
	}
}

func sum(all []int) (total int) {
	for _, n := range all {
		total += n
	}
	return total
}

// move moves money, and if it is to see one state of all accounts, sums them up.
func move(s concurrency.STM, from, to string, oneState bool) error {
	if oneState {
		total := 0
		for i := range accounts {
			total += number(s, account(i))
		}
		if total != 100*accounts {
			return fmt.Errorf("a transaction saw %d in the accounts", total)
		}
	}
	s.Put(from, strconv.Itoa(number(s, from)-1))
	s.Put(to, strconv.Itoa(number(s, to)+1))
	return nil
}

func setAll(s concurrency.STM, value string) error {
	for i := range accounts {
		s.Put(account(i), value)
	}
	return nil
}

// Clients that cache keys under leases count together, and none sees less than it has seen.
func leasingOverShards(t *testing.T, p *harness.Process, c *clientv3.Client) {
	t.Helper()
	const clients, rounds, counters = 3, 10, 9
	counter := func(i int) string { return fmt.Sprintf("k/%d", i%counters) }
	var wg sync.WaitGroup
	for g := range clients {
		wg.Go(func() {
			own := p.Client()
			defer own.Close()
			kv, end, err := leasing.NewKV(own, "leases/")
			if err != nil {
				t.Error(err)
				return
			}
			defer end()
			for n := range rounds {
				for i := range counters {
					if err := countUp(t.Context(), kv, counter(i+g)); err != nil {
						t.Errorf("count up: %v", err)
					}
				}
				if _, err := kv.Put(t.Context(), fmt.Sprintf("own/%d", g), strconv.Itoa(n)); err != nil {
					t.Errorf("put: %v", err)
				}
				if got, err := kv.Get(t.Context(), fmt.Sprintf("own/%d", g)); err != nil || string(got.Kvs[0].Value) != strconv.Itoa(n) {
					t.Errorf("read %v, %v, want %d", got, err, n)
				}
			}
		})
	}
	wg.Wait()
	for i := range counters {
		if got := value(t, c, counter(i)); got != strconv.Itoa(clients*rounds) {
			t.Errorf("%s is %s, want %d", counter(i), got, clients*rounds)
		}
	}
	// A deletion over all, which asks for the leases back, leaves nothing in any cache.
	cached, end, err := leasing.NewKV(c, "leases/")
	harness.Must(t, "leasing", err)
	defer end()
	other := p.Client()
	defer other.Close()
	deleting, endOther, err := leasing.NewKV(other, "leases/")
	harness.Must(t, "leasing", err)
	defer endOther()
	for i := range counters {
		value(t, cached, counter(i))
	}
	gone, err := deleting.Delete(t.Context(), "k/", clientv3.WithPrefix())
	harness.Must(t, "delete", err)
	if gone.Deleted != counters {
		t.Errorf("%d keys were deleted, want %d", gone.Deleted, counters)
	}
	for i := range counters {
		if got := value(t, cached, counter(i)); got != "" {
			t.Errorf("%s is cached as %q, though it is deleted", counter(i), got)
		}
	}
}

// countUp adds one to a counter unless another does.
func countUp(ctx context.Context, kv clientv3.KV, key string) error {
	for {
		r, err := kv.Get(ctx, key)
		if err != nil {
			return err
		}
		n, rev := 0, int64(0)
		if len(r.Kvs) > 0 {
			rev = r.Kvs[0].ModRevision
			if n, err = strconv.Atoi(string(r.Kvs[0].Value)); err != nil {
				return err
			}
		}
		done, err := kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", rev)).
			Then(clientv3.OpPut(key, strconv.Itoa(n+1))).Commit()
		if err != nil || done.Succeeded {
			return err
		}
	}
}

// What many put into a queue is taken out once each, by priority and in the order in which each
// of them put it in.
func queuesOverShards(t *testing.T, p *harness.Process, c *clientv3.Client) {
	t.Helper()
	const clients, each, priorities = 4, 9, 3
	var mu sync.Mutex
	taken := make(map[string]int)
	enqueue := func(wg *sync.WaitGroup, name string) {
		for g := range clients {
			wg.Go(func() {
				own := p.Client()
				defer own.Close()
				q := recipe.NewPriorityQueue(own, name)
				for n := range each {
					if err := q.Enqueue(fmt.Sprintf("%d/%d", g, n), uint16(1+n%priorities)); err != nil {
						t.Errorf("enqueue: %v", err)
					}
				}
			})
		}
	}
	var wg sync.WaitGroup
	enqueue(&wg, "queue")
	for range clients {
		wg.Go(func() {
			own := p.Client()
			defer own.Close()
			q := recipe.NewPriorityQueue(own, "queue")
			for range each {
				item, err := q.Dequeue()
				if err != nil {
					t.Errorf("dequeue: %v", err)
				}
				mu.Lock()
				taken[item]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for item, n := range taken {
		if n != 1 {
			t.Errorf("%s was taken %d times", item, n)
		}
	}
	if len(taken) != clients*each {
		t.Errorf("%d of %d were taken", len(taken), clients*each)
	}
	enqueue(&wg, "queue")
	wg.Wait()
	q := recipe.NewPriorityQueue(c, "queue")
	last, lastPriority := make(map[string]int), 0
	for range clients * each {
		item, err := q.Dequeue()
		harness.Must(t, "dequeue", err)
		g, text, _ := strings.Cut(item, "/")
		n, err := strconv.Atoi(text)
		harness.Must(t, "item", err)
		if n%priorities < lastPriority {
			t.Errorf("%s was taken behind priority %d", item, lastPriority+1)
		}
		if before, known := last[g]; known && before%priorities == n%priorities && before > n {
			t.Errorf("%s was taken behind %s/%d", item, g, before)
		}
		last[g], lastPriority = n, n%priorities
	}
}

// A mirror that writes each revision of what it follows as one transaction is like that at each
// of its own revisions, while keys move between directories of what it follows.
func mirrorsOverShards(t *testing.T, p *harness.Process, c *clientv3.Client) {
	t.Helper()
	const things, clients, rounds = 6, 4, 25
	var first []clientv3.Op
	for i := range things {
		first = append(first, clientv3.OpPut(fmt.Sprintf("from/0/%d", i), strconv.Itoa(i)))
	}
	_, err := c.Txn(t.Context()).Then(first...).Commit()
	harness.Must(t, "transaction", err)
	ctx, cancel := context.WithCancel(t.Context())
	mirrored := make(chan error, 1)
	go func() { mirrored <- mirrorTo(ctx, p, "from/", "to/") }()
	looked := make(chan error, 1)
	seen := c.Watch(t.Context(), "to/", clientv3.WithPrefix(), clientv3.WithRev(1))
	go func() { looked <- alwaysWhole(seen, things) }()
	var wg sync.WaitGroup
	for g := range clients {
		wg.Go(func() {
			for n := range rounds {
				if err := carry(t.Context(), c, (g+n)%things, (g*7+n*3)%4); err != nil {
					t.Errorf("carry: %v", err)
				}
			}
		})
	}
	wg.Wait()
	put(t, c, "from/9/last", "last")
	harness.Must(t, "looking at the mirror", <-looked)
	cancel()
	if err := <-mirrored; !errors.Is(err, context.Canceled) {
		t.Errorf("mirroring ended: %v", err)
	}
	contents := func(prefix string) (all []string) {
		r, err := c.Get(t.Context(), prefix, clientv3.WithPrefix())
		harness.Must(t, "read", err)
		for _, kv := range r.Kvs {
			all = append(all, strings.TrimPrefix(string(kv.Key), prefix)+"="+string(kv.Value))
		}
		return all
	}
	if from, to := contents("from/"), contents("to/"); !slices.Equal(from, to) {
		t.Errorf("the mirror has %q, what it follows %q", to, from)
	}
}

// carry moves a thing from the directory where it is to another.
func carry(ctx context.Context, c *clientv3.Client, thing, directory int) error {
	for {
		r, err := c.Get(ctx, "from/", clientv3.WithPrefix())
		if err != nil {
			return err
		}
		at := slices.IndexFunc(r.Kvs, func(kv *mvccpb.KeyValue) bool { return string(kv.Value) == strconv.Itoa(thing) })
		if at < 0 {
			return fmt.Errorf("thing %d is nowhere at revision %d", thing, r.Header.Revision)
		}
		from, to := string(r.Kvs[at].Key), fmt.Sprintf("from/%d/%d", directory, thing)
		if from == to {
			return nil
		}
		done, err := c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(from), "=", r.Kvs[at].ModRevision)).
			Then(clientv3.OpDelete(from), clientv3.OpPut(to, strconv.Itoa(thing))).Commit()
		if err != nil || done.Succeeded {
			return err
		}
	}
}

// mirrorTo copies what is under a prefix to another, and what happens there until the context
// ends.
func mirrorTo(ctx context.Context, p *harness.Process, from, to string) error {
	c := p.Client()
	defer c.Close()
	s := mirror.NewSyncer(c, from, 0)
	pages, errs := s.SyncBase(ctx)
	for page := range pages {
		var ops []clientv3.Op
		for _, kv := range page.Kvs {
			ops = append(ops, clientv3.OpPut(to+strings.TrimPrefix(string(kv.Key), from), string(kv.Value)))
		}
		if _, err := c.Txn(ctx).Then(ops...).Commit(); err != nil {
			return err
		}
	}
	if err := <-errs; err != nil {
		return err
	}
	for r := range s.SyncUpdates(ctx) {
		for events := r.Events; len(events) > 0; {
			var ops []clientv3.Op
			rev := events[0].Kv.ModRevision
			for ; len(events) > 0 && events[0].Kv.ModRevision == rev; events = events[1:] {
				kv := events[0].Kv
				key := to + strings.TrimPrefix(string(kv.Key), from)
				if events[0].Type == clientv3.EventTypeDelete {
					ops = append(ops, clientv3.OpDelete(key))
				} else {
					ops = append(ops, clientv3.OpPut(key, string(kv.Value)))
				}
			}
			if _, err := c.Txn(ctx).Then(ops...).Commit(); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// alwaysWhole returns when the last thing has come, or an error if there have been more or less
// than so many at some revision.
func alwaysWhole(watch clientv3.WatchChan, things int) error {
	there := make(map[string]bool)
	for r := range watch {
		if err := r.Err(); err != nil {
			return err
		}
		for i, e := range r.Events {
			there[string(e.Kv.Key)] = e.Type == clientv3.EventTypePut
			if string(e.Kv.Value) == "last" {
				return nil
			}
			if i+1 < len(r.Events) && r.Events[i+1].Kv.ModRevision == e.Kv.ModRevision {
				continue
			}
			n := 0
			for _, is := range there {
				if is {
					n++
				}
			}
			if n != things {
				return fmt.Errorf("%d things at revision %d, want %d", n, e.Kv.ModRevision, things)
			}
		}
	}
	return errors.New("the watch ended")
}
