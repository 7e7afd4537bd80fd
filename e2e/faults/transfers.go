package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Transfers moves money between accounts that lie on all shards. The sum never changes: reads
// of all accounts at once show it, newest and older ones, and so does a watch behind each
// revision. Each transfer that was acknowledged is found whole at the revision of its answer.
type Transfers struct {
	report  *Report
	clients []*clientv3.Client
	seed    uint64
	// begin is the revision at which the accounts were opened.
	begin int64

	mu sync.Mutex
	// acked holds the revisions of the acknowledged transfers; protected by mu.
	acked map[string]int64
}

const (
	accounts  = 12
	transfers = 6
	// opening is the balance of each account at first.
	opening = 100
)

// account is what a key of one holds: the balance, and which of how many places it has in the
// transfer that wrote it.
type account struct {
	balance   int
	transfer  string
	place, of int
}

func (a account) String() string {
	return fmt.Sprintf("%d %s %d %d", a.balance, a.transfer, a.place, a.of)
}

func parseAccount(value []byte) (a account, err error) {
	_, err = fmt.Sscanf(string(value), "%d %s %d %d", &a.balance, &a.transfer, &a.place, &a.of)
	return a, err
}

func accountKey(i int) string { return fmt.Sprintf("%c/account/%d", 'a'+byte(i*7%26), i) }

// NewTransfers returns the workload.
func NewTransfers(r *Report, seed uint64, clients []*clientv3.Client) *Transfers {
	return &Transfers{report: r, clients: clients, seed: seed, acked: make(map[string]int64)}
}

// Run transfers, reads and watches.
func (w *Transfers) Run(ctx context.Context) {
	if !w.open(ctx) {
		return
	}
	var wg sync.WaitGroup
	for id := range transfers {
		rnd := rand.New(rand.NewPCG(w.seed, uint64(id)))
		wg.Go(func() { w.client(ctx, id, rnd) })
	}
	for _, c := range w.clients {
		wg.Go(func() { w.watch(ctx, c) })
	}
	wg.Wait()
}

// open opens the accounts, and reports whether it is known to have done so.
func (w *Transfers) open(ctx context.Context) (done bool) {
	var puts, reads []clientv3.Op
	for i := range accounts {
		puts = append(puts, clientv3.OpPut(accountKey(i), account{opening, "opening", i, accounts}.String()))
		reads = append(reads, clientv3.OpGet(accountKey(i)))
	}
	until(ctx, func(ctx context.Context) bool {
		resp, err := w.clients[0].Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(accountKey(0)), "=", 0)).Then(puts...).Else(reads...).Commit()
		if err != nil {
			return false
		}
		w.begin = resp.Header.Revision
		if !resp.Succeeded {
			for i, r := range resp.Responses {
				kvs := r.GetResponseRange().Kvs
				if len(kvs) != 1 || i > 0 && kvs[0].ModRevision != w.begin {
					w.report.Violation("%s holds %v after its opening at %d", accountKey(i), kvs, w.begin)
					return true
				}
				w.begin = kvs[0].ModRevision
			}
		}
		done = true
		return true
	})
	return done
}

func (w *Transfers) client(ctx context.Context, id int, rnd *rand.Rand) {
	c := w.clients[id%len(w.clients)]
	for n := 0; ctx.Err() == nil; n++ {
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), attempt)
		// An error leaves nothing to know: whatever happens, the sum stays.
		var err error
		switch rnd.IntN(4) {
		case 0:
			err = w.read(try, c, "newest")
		case 1:
			err = w.read(try, c, "serializable", clientv3.WithSerializable())
		default:
			err = w.transfer(try, c, fmt.Sprintf("%d-%d", id, n), rnd)
		}
		cancel()
		if err == nil {
			w.report.Operations.Add(1)
		}
		sleep(ctx, between(rnd, 0, 2*registerPause))
	}
}

// transfer moves something from one account to one or two others, over what it has read.
func (w *Transfers) transfer(ctx context.Context, c *clientv3.Client, name string, rnd *rand.Rand) error {
	chosen := rnd.Perm(accounts)[:2+rnd.IntN(2)]
	reads := make([]clientv3.Op, 0, len(chosen))
	for _, i := range chosen {
		reads = append(reads, clientv3.OpGet(accountKey(i)))
	}
	resp, err := c.Txn(ctx).Then(reads...).Commit()
	if err != nil {
		return err
	}
	amount := rnd.IntN(20)
	var conds []clientv3.Cmp
	var puts []clientv3.Op
	for place, i := range chosen {
		kvs := resp.Responses[place].GetResponseRange().Kvs
		if len(kvs) != 1 {
			w.report.Violation("%s holds %v", accountKey(i), kvs)
			return nil
		}
		a, err := parseAccount(kvs[0].Value)
		if err != nil {
			return err
		}
		moved := amount
		if place == 0 {
			moved = -amount * (len(chosen) - 1)
		}
		next := account{a.balance + moved, name, place, len(chosen)}
		conds = append(conds, clientv3.Compare(clientv3.ModRevision(accountKey(i)), "=", kvs[0].ModRevision))
		puts = append(puts, clientv3.OpPut(accountKey(i), next.String()))
	}
	done, err := c.Txn(ctx).If(conds...).Then(puts...).Commit()
	if err == nil && done.Succeeded {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.acked[name] = done.Header.Revision
	}
	return err
}

// read reads all accounts at once, and then once more at the revision of the first answer.
func (w *Transfers) read(ctx context.Context, c *clientv3.Client, how string, opts ...clientv3.OpOption) error {
	get := func(opts ...clientv3.OpOption) (*clientv3.TxnResponse, error) {
		ops := make([]clientv3.Op, 0, accounts)
		for i := range accounts {
			ops = append(ops, clientv3.OpGet(accountKey(i), opts...))
		}
		return c.Txn(ctx).Then(ops...).Commit()
	}
	first, err := get(opts...)
	if err != nil {
		return err
	}
	balances := w.sum(how, first)
	// A serializable read may be from before the opening.
	if balances == nil || first.Header.Revision < w.begin {
		return nil
	}
	second, err := get(clientv3.WithRev(first.Header.Revision))
	if err != nil {
		return err
	}
	if again := w.sum("past", second); again != nil && *again != *balances {
		w.report.Violation("at revision %d the accounts hold %v, read later %v", first.Header.Revision, *balances, *again)
	}
	return nil
}

// sum checks the sum of what a read of all accounts has shown, and returns it all; nil if there is
// nothing to compare.
func (w *Transfers) sum(how string, resp *clientv3.TxnResponse) *[accounts]account {
	var all [accounts]account
	sum, found := 0, 0
	for i, r := range resp.Responses {
		for _, kv := range r.GetResponseRange().Kvs {
			a, err := parseAccount(kv.Value)
			if err != nil || kv.ModRevision > resp.Header.Revision {
				w.report.Violation("%s read at %d: %v (%v)", accountKey(i), resp.Header.Revision, kv, err)
				return nil
			}
			all[i] = a
			sum += a.balance
			found++
		}
	}
	if found == 0 && resp.Header.Revision < w.begin {
		return nil
	}
	if found != accounts || sum != accounts*opening {
		w.report.Violation("%s read at revision %d: %d accounts hold %d: %v", how, resp.Header.Revision, found, sum, all)
		return nil
	}
	return &all
}

// watch sees to it that the sum is right behind each revision, and each transfer whole and in order.
func (w *Transfers) watch(ctx context.Context, c *clientv3.Client) {
	balances := make(map[string]int)
	for i := range accounts {
		balances[accountKey(i)] = opening
	}
	watchRevisions(ctx, w.report, c, "a", "{", w.begin+1, func(rev int64, events []*clientv3.Event) {
		next, of := 0, 0
		for _, e := range events {
			if _, ok := balances[string(e.Kv.Key)]; !ok {
				continue
			}
			a, err := parseAccount(e.Kv.Value)
			if err != nil || a.place != next {
				w.report.Violation("watch: revision %d has %v at place %d (%v)", rev, e, next, err)
			}
			balances[string(e.Kv.Key)] = a.balance
			next, of = next+1, a.of
		}
		sum := 0
		for _, b := range balances {
			sum += b
		}
		if next != of || sum != accounts*opening {
			w.report.Violation("watch: revision %d has %d of %d events of a transfer, behind it the accounts hold %d", rev, next, of, sum)
		}
	})
}

// Check holds the history of the accounts against what was acknowledged.
func (w *Transfers) Check(ctx context.Context) {
	if w.begin == 0 {
		return
	}
	w.report.check(ctx, "the accounts", func(ctx context.Context) bool { return w.read(ctx, w.clients[0], "last") == nil })
	// found holds the revisions of the places of each transfer.
	found := make(map[string][]int64)
	for i := range accounts {
		w.report.check(ctx, accountKey(i), func(ctx context.Context) bool {
			resp, err := w.clients[i%len(w.clients)].Get(ctx, accountKey(i))
			if err != nil || len(resp.Kvs) == 0 {
				return false
			}
			return history(ctx, w.clients[i%len(w.clients)], accountKey(i), w.begin+1, resp.Kvs[0].ModRevision, func(e *clientv3.Event) {
				a, err := parseAccount(e.Kv.Value)
				if err != nil {
					w.report.Violation("history: %v: %v", e, err)
					return
				}
				if found[a.transfer] == nil {
					found[a.transfer] = make([]int64, a.of)
				}
				found[a.transfer][a.place] = e.Kv.ModRevision
			})
		})
	}
	for name, places := range found {
		for _, rev := range places {
			if rev != places[0] || rev == 0 {
				w.report.Violation("history: transfer %s is at revisions %v", name, places)
				break
			}
		}
	}
	for name, rev := range w.acked {
		if places := found[name]; len(places) == 0 || places[0] != rev {
			w.report.Violation("history: transfer %s of revision %d is at %v", name, rev, places)
		}
	}
}
