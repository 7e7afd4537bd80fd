package faults

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Chains writes 1, 2, 3 ... into keys, each number only over the one before, and watches
// them through another node. A key's history is then the numbers without a gap: a
// write that was lost, or applied twice, or an event that was missed or doubled shows.
type Chains struct {
	report *Report
	chains []*chain
}

type chain struct {
	key            string
	writer, reader *clientv3.Client
	acked, rev     atomic.Int64
	// seen is the last number that the watch saw.
	seen atomic.Int64
}

// chainKeys spreads keys over all shards of a cluster with splits in the letters.
func chainKey(i int) string { return fmt.Sprintf("%c/chain/%d", 'a'+byte(i*7%26), i) }

// NewChains returns n chains whose clients each use one node.
func NewChains(r *Report, n int, clients []*clientv3.Client) *Chains {
	c := &Chains{report: r}
	for i := range n {
		c.chains = append(c.chains, &chain{key: chainKey(i), writer: clients[i%len(clients)], reader: clients[(i+1)%len(clients)]})
	}
	return c
}

// Run writes and watches.
func (c *Chains) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, w := range c.chains {
		wg.Go(func() { w.write(ctx, c.report) })
		wg.Go(func() { w.watch(ctx, c.report) })
	}
	wg.Wait()
}

func (w *chain) write(ctx context.Context, r *Report) {
	for ctx.Err() == nil {
		next := w.acked.Load() + 1
		until(ctx, func(ctx context.Context) bool {
			cond := clientv3.Compare(clientv3.Value(w.key), "=", strconv.FormatInt(next-1, 10))
			if next == 1 {
				cond = clientv3.Compare(clientv3.CreateRevision(w.key), "=", 0)
			}
			resp, err := w.writer.Txn(ctx).If(cond).
				Then(clientv3.OpPut(w.key, strconv.FormatInt(next, 10))).Else(clientv3.OpGet(w.key)).Commit()
			if err != nil {
				return false // unknown: the next try finds out
			}
			if !resp.Succeeded {
				kvs := resp.Responses[0].GetResponseRange().Kvs
				if len(kvs) != 1 || string(kvs[0].Value) != strconv.FormatInt(next, 10) {
					r.Violation("%s: number %d finds %v; %d was acknowledged", w.key, next, kvs, next-1)
				}
			}
			if resp.Header.Revision <= w.rev.Load() {
				r.Violation("%s: number %d was answered revision %d, the one before %d", w.key, next, resp.Header.Revision, w.rev.Load())
			}
			w.rev.Store(resp.Header.Revision)
			w.acked.Store(next)
			r.Operations.Add(1)
			return true
		})
	}
}

// watch sees to it that the numbers come one after the other.
func (w *chain) watch(ctx context.Context, r *Report) {
	next, from := int64(1), int64(1)
	for ctx.Err() == nil {
		// A watch that a client ended, as clientv3 does with some errors, is resumed.
		for resp := range w.reader.Watch(clientv3.WithRequireLeader(ctx), w.key, clientv3.WithRev(from)) {
			if resp.CompactRevision != 0 {
				r.Violation("%s: watch from %d ended as compacted", w.key, from)
				return
			}
			for _, e := range resp.Events {
				if string(e.Kv.Value) != strconv.FormatInt(next, 10) {
					r.Violation("%s: watch saw %q, expected %d", w.key, e.Kv.Value, next)
				}
				next, from = next+1, e.Kv.ModRevision+1
				w.seen.Store(next - 1)
			}
		}
		sleep(ctx, 10*time.Millisecond)
	}
}

// Check reads the keys, and has each watch catch up.
func (c *Chains) Check(ctx context.Context) {
	for _, w := range c.chains {
		c.report.check(ctx, w.key, func(ctx context.Context) bool {
			resp, err := w.reader.Get(ctx, w.key)
			if err != nil {
				return false
			}
			var got, version int64
			if len(resp.Kvs) == 1 {
				got, _ = strconv.ParseInt(string(resp.Kvs[0].Value), 10, 64)
				version = resp.Kvs[0].Version
			}
			if acked := w.acked.Load(); got < acked || got > acked+1 || version != got {
				c.report.Violation("%s is %d at version %d, %d was acknowledged", w.key, got, version, acked)
			}
			c.history(ctx, w, got)
			return true
		})
	}
}

// history watches a key from its beginning, through yet another stream.
func (c *Chains) history(ctx context.Context, w *chain, last int64) {
	if last == 0 {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	next := int64(1)
	for resp := range w.writer.Watch(ctx, w.key, clientv3.WithRev(1)) {
		for _, e := range resp.Events {
			if string(e.Kv.Value) != strconv.FormatInt(next, 10) {
				c.report.Violation("%s: history has %q, expected %d", w.key, e.Kv.Value, next)
			}
			next++
		}
		if next > last {
			return
		}
	}
	c.report.Violation("%s: history ends at %d of %d", w.key, next-1, last)
}
