package mvcc

import (
	"fmt"
	"maps"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"pgregory.net/rapid"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// watchCheck follows one watcher and compares what it gets with the model.
type watchCheck struct {
	opts WatchOptions
	// created is the revision that Add returned.
	created int64
	// seen is the number of the changes of the model's log that are accounted
	// for: those wanted among them have been handed out.
	seen int
	// last is the revision of the last batch, and progress the one up to which it was told that it has everything.
	last, progress int64

	ended bool
}

func (c *watchCheck) start() int64 {
	if c.opts.Start == 0 {
		return c.created + 1
	}
	return c.opts.Start
}

func (c *watchCheck) span() keys.Span { return keys.FromRange(c.opts.Key, c.opts.End) }

func (c *watchCheck) wants(ch modelChange) bool {
	if ch.rev < c.start() || ch.dead && c.opts.NoDelete || !ch.dead && c.opts.NoPut {
		return false
	}
	return inRange(string(ch.kv.Key), c.opts.Key, c.opts.End)
}

// batch checks one batch: the next events of the log, whole revisions, none
// left out, none twice, with the right previous versions.
func (c *watchCheck) batch(t fataler, m *model, rev int64, b WatchBatch) {
	if c.ended {
		t.Fatalf("watcher %+v: a batch after the end: %v", c.opts, b)
	}
	if b.CompactRev != 0 {
		if b.CompactRev > m.compact || len(b.Events) != 0 || b.Rev != 0 {
			t.Fatalf("watcher %+v: ended with %+v, compacted at %d", c.opts, b, m.compact)
		}
		if c.last >= b.CompactRev || c.opts.Start == 0 && c.created >= b.CompactRev || c.opts.Start >= b.CompactRev {
			t.Fatalf("watcher %+v at %d: ended for the compaction at %d", c.opts, c.last, b.CompactRev)
		}
		c.ended = true
		return
	}
	if len(b.Events) == 0 {
		t.Fatalf("watcher %+v: empty batch", c.opts)
	}
	for _, ev := range b.Events {
		for c.seen < len(m.log) && !c.wants(m.log[c.seen]) {
			c.seen++
		}
		if c.seen == len(m.log) {
			t.Fatalf("watcher %+v: event %v is not in the log", c.opts, ev)
		}
		c.event(t, m, m.log[c.seen], ev)
		c.seen++
	}
	first, last := b.Events[0].Kv.ModRevision, b.Events[len(b.Events)-1].Kv.ModRevision
	if first <= c.last || b.Rev < last || b.Rev > rev {
		t.Fatalf("watcher %+v: batch of %d to %d with header %d after %d", c.opts, first, last, b.Rev, c.last)
	}
	c.last = last
	for _, ch := range m.log[c.seen:] {
		if ch.rev == last && c.wants(ch) {
			t.Fatalf("watcher %+v: revision %d was split", c.opts, last)
		}
	}
}

func (c *watchCheck) event(t fataler, m *model, ch modelChange, ev *mvccpb.Event) {
	want := &mvccpb.Event{Kv: ch.kv}
	if ch.dead {
		want.Type = mvccpb.Event_DELETE
	}
	if c.opts.PrevKV && (ch.dead || ch.kv.CreateRevision != ch.rev) {
		want.PrevKv = ch.prev
		if ev.PrevKv == nil && ch.rev <= m.compact {
			want.PrevKv = nil // its history may have been compacted
		}
	}
	same(t, fmt.Sprintf("event for watcher %+v", c.opts), ev, want)
}

// idle checks that a watcher that has nothing to come is not owed anything.
func (c *watchCheck) idle(t fataler, m *model, rev int64) {
	for _, ch := range m.log[c.seen:] {
		if !c.ended && ch.rev <= rev && c.wants(ch) {
			t.Fatalf("watcher %+v (created at %d, last %d) misses %v at %d", c.opts, c.created, c.last, ch.kv, rev)
		}
	}
}

// watchMachine watches a store while random commands run on it.
type watchMachine struct {
	*machine
	groups []*watchedGroup
}

type watchedGroup struct {
	g      *Group
	checks map[int64]*watchCheck
	next   int64
}

// told notes progress, of which all watchers of the group hear, and none that comes later: keys of that one may be held.
func (g *watchedGroup) told(rev int64) {
	for _, c := range g.checks {
		c.progress = rev
	}
}

func (x *watchMachine) group(t *rapid.T) *watchedGroup {
	return x.groups[rapid.IntRange(0, len(x.groups)-1).Draw(t, "group")]
}

func (x *watchMachine) add(t *rapid.T) {
	g := x.group(t)
	o := WatchOptions{
		PrevKV: rapid.Bool().Draw(t, "prev"), NoPut: rapid.IntRange(0, 4).Draw(t, "no put") == 0, NoDelete: rapid.IntRange(0, 4).Draw(t, "no delete") == 0,
		Start: rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(1, x.m.rev+4)).Draw(t, "start"),
	}
	o.Key, o.End = drawRange(t)
	g.next++
	g.checks[g.next] = &watchCheck{opts: o, created: g.g.Add(g.next, o)}
	want := x.resolved(keys.FromRange(o.Key, o.End))
	if got := g.checks[g.next].created; got != want {
		t.Fatalf("created at %d, want %d", got, want)
	}
}

func (x *watchMachine) remove(t *rapid.T) {
	g := x.group(t)
	if len(g.checks) == 0 || rapid.IntRange(0, 3).Draw(t, "really") > 0 {
		return
	}
	id := rapid.Int64Range(1, g.next).Draw(t, "id")
	if got := g.g.Remove(id); got != (g.checks[id] != nil) {
		t.Fatalf("Remove(%d) = %v", id, got)
	}
	delete(g.checks, id)
}

func (x *watchMachine) poll(t *rapid.T) {
	g := x.group(t)
	for range rapid.IntRange(1, 4).Draw(t, "polls") {
		if !x.pollOnce(t, g) {
			break
		}
	}
}

func (x *watchMachine) pollOnce(t *rapid.T, g *watchedGroup) bool {
	b, ok, err := g.g.Poll()
	if err != nil {
		t.Fatalf("poll: %v", err)
	}
	if !ok {
		for _, c := range g.checks {
			c.idle(t, x.m, min(x.published.rev, x.resolved(c.span())))
		}
		return false
	}
	c := g.checks[b.ID]
	if c == nil {
		t.Fatalf("a batch for the removed watcher %d", b.ID)
	}
	m := *x.m
	m.compact = x.pubComp
	c.batch(t, &m, x.resolved(c.span()), b)
	if len(b.Events) > 0 && b.Events[0].Kv.ModRevision <= c.progress {
		t.Fatalf("event at %d after progress %d", b.Events[0].Kv.ModRevision, c.progress)
	}
	return true
}

// drain polls until nothing comes: then all watchers that have not been ended
// and have started make progress possible.
func (x *watchMachine) drain(t *rapid.T) {
	g := x.group(t)
	for x.pollOnce(t, g) {
	}
	want := len(g.checks) > 0
	resolved := max(x.published.rev, x.resolvedTo)
	for _, c := range g.checks {
		resolved = min(resolved, x.resolved(c.span()))
	}
	for _, c := range g.checks {
		want = want && !c.ended && c.opts.Start <= resolved
	}
	rev, ok := g.g.Progress()
	if ok != want || rev != resolved {
		t.Fatalf("progress %d, %v at %d, want %v", rev, ok, resolved, want)
	}
	if ok {
		g.told(rev)
	}
}

// early checks that progress is never promised too early.
func (x *watchMachine) early(t *rapid.T) {
	g := x.group(t)
	if rev, ok := g.g.Progress(); ok {
		for _, c := range g.checks {
			c.idle(t, x.m, rev)
		}
		g.told(rev)
	}
}

// many puts more at once than is queued for a watcher.
func (x *watchMachine) many(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "really") > 0 {
		return
	}
	if len(x.transactions) > 0 || x.promised > x.m.rev {
		return
	}
	n := rapid.SampledFrom([]int{maxQueuedBatches + 5, maxCatchUpRevs + 50}).Draw(t, "n")
	for i := range n {
		req := &pb.PutRequest{Key: []byte(someKeys[i%len(someKeys)]), Value: []byte("many")}
		c := x.m.begin(&x.leases, 0)
		c.put(req)
		if _, err := x.writer().Put(req, Opts{}); err != nil {
			t.Fatalf("put: %v", err)
		}
		c.end()
	}
}

func (x *watchMachine) closeGroup(t *rapid.T) {
	i := rapid.IntRange(0, len(x.groups)-1).Draw(t, "group")
	x.groups[i].g.Close()
	x.groups[i] = x.newGroup()
}

func (x *watchMachine) newGroup() *watchedGroup {
	return &watchedGroup{g: x.s.NewGroup(), checks: make(map[int64]*watchCheck)}
}

func (x *watchMachine) reload(t *rapid.T) {
	x.publish(t)
	for len(x.held) > 0 {
		x.release(t)
	}
	x.s.BeginReload()
	for _, g := range x.groups {
		if b, ok, err := g.g.Poll(); ok || err != nil {
			t.Fatalf("poll while the store is replaced: %v, %v", b, err)
		}
	}
	if err := x.s.Reload(); err != nil {
		t.Fatalf("reload: %v", err)
	}
}

func TestWatchModel(t *testing.T) {
	for i := range 5 {
		t.Run(fmt.Sprint(i), func(t *testing.T) { rapid.Check(t, checkWatchMachine) })
	}
}

func checkWatchMachine(t *rapid.T) { runWatchMachine(t, nil) }

// runWatchMachine has random commands run on a watched store, and what more returns.
func runWatchMachine(t *rapid.T, more func(x *watchMachine) map[string]func(*rapid.T)) {
	x := &watchMachine{machine: &machine{env: newEnv(t, vfs.NewMem()), m: newModel(), published: modelState{rev: 1}, pubComp: -1}}
	defer func() {
		if x.w != nil {
			x.w.batch.Close()
		}
		x.close()
	}()
	for range 3 {
		x.groups = append(x.groups, x.newGroup())
	}
	actions := map[string]func(*rapid.T){
		"put": x.put, "delete": x.delete, "delete keys": x.deleteKeys, "txn": x.transact, "many": x.many,
		"compact": x.compactSome, "publish": x.publish, "publish again": x.publish, "sweep": x.sweepSome, "reload": x.reload,
		"add": x.add, "add again": x.add, "add more": x.add, "remove": x.remove, "poll": x.poll, "poll again": x.poll, "drain": x.drain, "early": x.early,
		"close group": x.closeGroup,
	}
	if more != nil {
		maps.Copy(actions, more(x))
	}
	t.Repeat(actions)
	x.publish(t)
	for _, g := range x.groups {
		for x.pollOnce(t, g) {
		}
		g.g.Close()
	}
	h := &x.s.hub
	if len(h.groups) != 0 || len(h.points) != 0 || h.ranges.Len() != 0 || h.synced != 0 || h.lagging != 0 || len(h.parked) != 0 || h.queued != 0 {
		t.Fatalf("%d groups, %d points, %d ranges, %d, %d and %d watchers, %d events after all groups are closed",
			len(h.groups), len(h.points), h.ranges.Len(), h.synced, h.lagging, len(h.parked), h.queued)
	}
}
