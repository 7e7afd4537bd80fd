package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Leases keeps some leases alive, each renewed through any node that answers, and lets
// others go. What is renewed in time must stay, with its keys; what is not must end
// within its TTL and a bound.
type Leases struct {
	report  *Report
	clients []*clientv3.Client
	n       int
	// TTL is that of all leases, in seconds; Bound is how much later than the TTL a lease
	// may end.
	TTL   int64
	Bound time.Duration
}

// NewLeases returns n kept and n abandoned leases at a time.
func NewLeases(r *Report, n int, ttl int64, bound time.Duration, clients []*clientv3.Client) *Leases {
	return &Leases{report: r, clients: clients, n: n, TTL: ttl, Bound: bound}
}

// Run keeps and abandons.
func (l *Leases) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for i := range l.n {
		wg.Go(func() {
			for ctx.Err() == nil {
				l.keep(ctx, i)
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				l.abandon(ctx, i)
			}
		})
	}
	wg.Wait()
}

// Check does nothing: each lease was checked when it ended.
func (l *Leases) Check(context.Context) {}

// begin grants a lease with keys on two shards. The lease is judged only if both are
// known to be there. sure is a moment at which it certainly had its full TTL.
func (l *Leases) begin(ctx context.Context, name string, i int) (id clientv3.LeaseID, keys []string, sure time.Time, ok bool) {
	c := l.clients[i%len(l.clients)]
	keys = []string{fmt.Sprintf("%c/%s/%d", 'a'+byte(i*5%26), name, i), fmt.Sprintf("%c/%s/%d", 'a'+byte((i*5+13)%26), name, i)}
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	before := time.Now()
	g, err := c.Grant(ctx, l.TTL)
	if err != nil {
		sleep(ctx, 50*time.Millisecond)
		return 0, nil, before, false
	}
	for _, k := range keys {
		if _, err := c.Put(ctx, k, "", clientv3.WithLease(g.ID)); err != nil {
			return g.ID, keys, before, false
		}
	}
	l.report.Operations.Add(1)
	return g.ID, keys, before, true
}

// keep renews a lease for some time, asking every node in turn until one answers. As long
// as no renewal was older than the TTL the lease and its keys must be there.
func (l *Leases) keep(ctx context.Context, i int) {
	id, keys, renewed, ok := l.begin(ctx, "kept", i)
	ttl := time.Duration(l.TTL) * time.Second
	for n := i; ok && ctx.Err() == nil; n++ {
		asked := time.Now()
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), ttl/6)
		_, err := l.clients[n%len(l.clients)].KeepAliveOnce(try, id)
		cancel()
		switch {
		case err == nil:
			renewed = asked
			l.report.Operations.Add(1)
			l.present(ctx, n, id, keys, renewed)
			sleep(ctx, ttl/4)
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			if age := asked.Sub(renewed); age < ttl {
				l.report.Violation("lease %x of %v ended %v after it was renewed", id, ttl, age)
			}
			return
		case time.Since(renewed) > ttl:
			return // nobody answered in time: it may end
		}
	}
}

// present checks that the keys of a lease that was renewed at some moment are there.
func (l *Leases) present(ctx context.Context, n int, id clientv3.LeaseID, keys []string, renewed time.Time) {
	ttl := time.Duration(l.TTL) * time.Second
	for _, k := range keys {
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), ttl/6)
		resp, err := l.clients[n%len(l.clients)].Get(try, k)
		cancel()
		if err == nil && len(resp.Kvs) == 0 && time.Since(renewed) < ttl {
			l.report.Violation("key %s of lease %x is gone %v after it was renewed", k, id, time.Since(renewed))
		}
	}
}

// abandon grants a lease and lets it go. Its keys go together.
func (l *Leases) abandon(ctx context.Context, i int) {
	id, keys, granted, ok := l.begin(ctx, "left", i)
	if !ok {
		return
	}
	ttl := time.Duration(l.TTL) * time.Second
	for n := i; ctx.Err() == nil; n++ {
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), ttl/2)
		resp, err := l.clients[n%len(l.clients)].Txn(try).Then(clientv3.OpGet(keys[0]), clientv3.OpGet(keys[1])).Commit()
		cancel()
		age, left := time.Since(granted), 0
		if err == nil {
			for _, r := range resp.Responses {
				left += len(r.GetResponseRange().Kvs)
			}
		}
		switch {
		case err != nil:
		case left == 1:
			l.report.Violation("lease %x has one of its two keys at %d", id, resp.Header.Revision)
			return
		case left == 0 && age < ttl:
			l.report.Violation("lease %x of %v ended after %v", id, ttl, age)
			return
		case left == 0:
			l.report.Operations.Add(1)
			return
		case age > ttl+l.Bound:
			l.report.Violation("lease %x of %v is there after %v", id, ttl, age)
			return
		}
		sleep(ctx, 200*time.Millisecond)
	}
}
