package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Groups puts groups of keys at once, deletes each by one range, and so on. A group lies on both
// sides of a letter at which clusters are divided. Reads and watches see all of a group or
// nothing, all of one revision.
type Groups struct {
	report  *Report
	clients []*clientv3.Client
	seed    uint64
	groups  []*group
}

const (
	// groupShards are the parts between which the groups lie. Clusters of two, four and eight
	// shards are divided there.
	groupShards = 8
	groupKeys   = 6
	groupPause  = 100 * time.Millisecond
)

// group is keys in a range that nobody else writes to.
type group struct {
	start, end string
	keys       [groupKeys]string
	// counter is a key elsewhere that counts the steps, an odd one puts the group, an even one
	// deletes it. A group without one is written without conditions: what is of unknown outcome
	// may take place later.
	counter string
	writer  *clientv3.Client
	// acked is the last step that was acknowledged and rev its revision. They are the writer's.
	acked, rev int64
}

// NewGroups returns the workload.
func NewGroups(r *Report, seed uint64, clients []*clientv3.Client) *Groups {
	w := &Groups{report: r, clients: clients, seed: seed}
	for i := 1; i < groupShards; i++ {
		at := byte('a' + i*26/groupShards)
		// Other keys have a slash behind their letter, which lies between these two signs.
		g := &group{start: fmt.Sprintf("%c~", at-1), end: fmt.Sprintf("%c/", at), writer: clients[i%len(clients)]}
		for k := range g.keys {
			if g.keys[k] = fmt.Sprintf("%c~%d", at-1, k); k >= groupKeys/2 {
				g.keys[k] = fmt.Sprintf("%c!%d", at, k)
			}
		}
		if i%3 != 0 {
			g.counter = fmt.Sprintf("%c/group/%d", 'a'+byte(i*11%26), i)
		}
		w.groups = append(w.groups, g)
	}
	return w
}

// Run writes, reads and watches.
func (w *Groups) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for i, g := range w.groups {
		rnd := rand.New(rand.NewPCG(w.seed, uint64(i)))
		wg.Go(func() { w.write(ctx, g, rnd) })
		wg.Go(func() { w.read(ctx, g, w.clients[(i+1)%len(w.clients)]) })
		wg.Go(func() { w.watch(ctx, g, w.clients[(i+2)%len(w.clients)]) })
	}
	wg.Wait()
}

// write takes one step after the other.
func (w *Groups) write(ctx context.Context, g *group, rnd *rand.Rand) {
	for ctx.Err() == nil {
		until(ctx, func(ctx context.Context) bool {
			if g.counter == "" {
				return w.plain(ctx, g)
			}
			return w.step(ctx, g)
		})
		sleep(ctx, between(rnd, 0, 2*groupPause))
	}
}

// puts returns what puts a group in a step.
func (g *group) puts(step int64) (ops []clientv3.Op) {
	for _, k := range g.keys {
		ops = append(ops, clientv3.OpPut(k, strconv.FormatInt(step, 10)))
	}
	return ops
}

// plain takes a step without conditions.
func (w *Groups) plain(ctx context.Context, g *group) bool {
	step := g.acked + 1
	if step%2 == 1 {
		if _, err := g.writer.Txn(ctx).Then(g.puts(step)...).Commit(); err != nil {
			return false
		}
	} else {
		resp, err := g.writer.Delete(ctx, g.start, clientv3.WithRange(g.end), clientv3.WithPrevKV())
		if err != nil {
			return false
		}
		if resp.Deleted != int64(len(resp.PrevKvs)) || !whole(resp.PrevKvs) {
			w.report.Violation("%s: deleted at revision %d %d: %v", g.start, resp.Header.Revision, resp.Deleted, resp.PrevKvs)
		}
	}
	g.acked = step
	w.report.Operations.Add(1)
	return true
}

// step takes a step over the one before.
func (w *Groups) step(ctx context.Context, g *group) bool {
	step := g.acked + 1
	cond := clientv3.Compare(clientv3.Value(g.counter), "=", strconv.FormatInt(g.acked, 10))
	if step == 1 {
		cond = clientv3.Compare(clientv3.CreateRevision(g.counter), "=", 0)
	}
	then := []clientv3.Op{clientv3.OpDelete(g.start, clientv3.WithRange(g.end))}
	if step%2 == 1 {
		then = g.puts(step)
	}
	all := clientv3.OpGet(g.start, clientv3.WithRange(g.end))
	resp, err := g.writer.Txn(ctx).If(cond).
		Then(append(then, clientv3.OpPut(g.counter, strconv.FormatInt(step, 10)), all)...).
		Else(clientv3.OpGet(g.counter), all).Commit()
	if err != nil {
		return false // unknown: the next try finds out
	}
	if resp.Header.Revision <= g.rev {
		w.report.Violation("%s: step %d was answered revision %d, the one before %d", g.start, step, resp.Header.Revision, g.rev)
	}
	if !resp.Succeeded {
		kvs := resp.Responses[0].GetResponseRange().Kvs
		if len(kvs) != 1 || string(kvs[0].Value) != strconv.FormatInt(step, 10) {
			w.report.Violation("%s: step %d finds %v; %d was acknowledged", g.start, step, kvs, g.acked)
		}
	}
	w.stands(g, step, resp.Header.Revision, resp.Responses[len(resp.Responses)-1].GetResponseRange().Kvs)
	g.acked, g.rev = step, resp.Header.Revision
	w.report.Operations.Add(1)
	return true
}

// stands checks what is there of a group with a counter behind a step.
func (w *Groups) stands(g *group, step, rev int64, kvs []*mvccpb.KeyValue) {
	there := len(kvs) == groupKeys && string(kvs[0].Value) == strconv.FormatInt(step, 10)
	if there != (step%2 == 1) || !there && len(kvs) > 0 || !whole(kvs) {
		w.report.Violation("%s: behind step %d revision %d has %v", g.start, step, rev, kvs)
	}
}

// whole reports whether what was read of a group is nothing, or all and of one step.
func whole(kvs []*mvccpb.KeyValue) bool {
	for _, kv := range kvs {
		if kv.ModRevision != kvs[0].ModRevision || kv.CreateRevision != kvs[0].CreateRevision || string(kv.Value) != string(kvs[0].Value) {
			return false
		}
	}
	return len(kvs) == 0 || len(kvs) == groupKeys
}

// read reads the group again and again.
func (w *Groups) read(ctx context.Context, g *group, c *clientv3.Client) {
	for n := 0; ctx.Err() == nil; n++ {
		opts := []clientv3.OpOption{clientv3.WithRange(g.end)}
		if n%3 == 0 {
			opts = append(opts, clientv3.WithSerializable())
		}
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), attempt)
		resp, err := c.Get(try, g.start, opts...)
		cancel()
		if err == nil {
			if !whole(resp.Kvs) {
				w.report.Violation("%s: a read at revision %d has %v", g.start, resp.Header.Revision, resp.Kvs)
			}
			w.report.Operations.Add(1)
		}
		sleep(ctx, groupPause)
	}
}

// watch sees to it that the group comes and goes as a whole, and where it has a counter step by step.
func (w *Groups) watch(ctx context.Context, g *group, c *clientv3.Client) {
	step := int64(0)
	watchRevisions(ctx, w.report, c, g.start, g.end, 1, func(rev int64, events []*clientv3.Event) {
		good := len(events) == groupKeys
		for i, e := range events {
			good = good && e.Type == events[0].Type && string(e.Kv.Key) == g.keys[i] && string(e.Kv.Value) == string(events[0].Kv.Value)
		}
		if g.counter != "" {
			step++
			put := events[0].Type == clientv3.EventTypePut && string(events[0].Kv.Value) == strconv.FormatInt(step, 10)
			good = good && put == (step%2 == 1)
		}
		if !good {
			w.report.Violation("%s: a watch sees of step %d at revision %d %v", g.start, step, rev, events)
		}
	})
}

// Check reads the groups.
func (w *Groups) Check(ctx context.Context) {
	for i, g := range w.groups {
		w.report.check(ctx, g.start, func(ctx context.Context) bool {
			all := clientv3.OpGet(g.start, clientv3.WithRange(g.end))
			ops := []clientv3.Op{all}
			if g.counter != "" {
				ops = append(ops, clientv3.OpGet(g.counter))
			}
			resp, err := w.clients[i%len(w.clients)].Txn(ctx).Then(ops...).Commit()
			if err != nil {
				return false
			}
			kvs := resp.Responses[0].GetResponseRange().Kvs
			if g.counter == "" {
				if !whole(kvs) {
					w.report.Violation("%s ends as %v", g.start, kvs)
				}
				return true
			}
			step := int64(0)
			for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
				step, _ = strconv.ParseInt(string(kv.Value), 10, 64)
			}
			if step != g.acked && step != g.acked+1 {
				w.report.Violation("%s ends at step %d, %d was acknowledged", g.start, step, g.acked)
			}
			w.stands(g, step, resp.Header.Revision, kvs)
			return true
		})
	}
}
