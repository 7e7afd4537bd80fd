package mvcc

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"pgregory.net/rapid"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// heldKeys is a transaction of the model that is not settled.
type heldKeys struct {
	id                string
	bound, from       int64
	shared, exclusive []keys.Span
}

// touch reports whether one of the keys that tests use lies in both lists, and where a span
// has none of them, whether the spans overlap.
func touch(a, b []keys.Span) bool {
	for _, s := range a {
		if slices.ContainsFunc(b, s.Overlaps) {
			return true
		}
	}
	return false
}

// meets reports whether a command must wait for a transaction, and holds it against the
// writer's answer.
func (x *machine) meets(t *rapid.T, reads, writes []keys.Span) bool {
	want := false
	for _, h := range x.transactions {
		want = want || touch(reads, h.exclusive) || touch(writes, h.exclusive) || touch(writes, h.shared)
	}
	if got := x.writer().Meets(reads, writes); got != want {
		t.Fatalf("a command that reads %v and writes %v meets a hold: %v, want %v", reads, writes, got, want)
	}
	return want
}

// bound returns the lowest bound of an exclusive hold.
func (x *machine) bound() int64 {
	bound := int64(math.MaxInt64)
	for _, h := range x.transactions {
		if len(h.exclusive) > 0 {
			bound = min(bound, h.bound)
		}
	}
	return bound
}

// resolved returns up to which revision the published state is complete for span.
func (x *machine) resolved(span keys.Span) int64 {
	rev := max(x.published.rev, x.resolvedTo)
	for _, h := range x.visible {
		if touch([]keys.Span{span}, h.exclusive) {
			rev = min(rev, h.from)
		}
	}
	return rev
}

// heldFrom returns up to which revision the published state lacks nothing because of a hold.
func (x *machine) heldFrom() int64 {
	rev := int64(math.MaxInt64)
	for _, h := range x.visible {
		if len(h.exclusive) > 0 {
			rev = min(rev, h.from)
		}
	}
	return rev
}

func (x *machine) compactTo(rev int64) error {
	if rev > x.m.compact && rev <= x.m.rev && rev > x.bound() {
		return ErrHeld
	}
	return x.m.compactTo(rev)
}

func drawSpans(t *rapid.T, label string, least int) []keys.Span {
	spans := make([]keys.Span, rapid.IntRange(least, 3).Draw(t, label))
	for i := range spans {
		key, end := drawRange(t)
		spans[i] = keys.FromRange(key, end)
	}
	return slices.DeleteFunc(spans, keys.Span.Empty)
}

// holdMachine has transactions hold keys and settle while a store is watched.
type holdMachine struct {
	*watchMachine
	n int
}

func (x *holdMachine) begin(t *rapid.T) {
	h := &heldKeys{shared: drawSpans(t, "shared", 0), exclusive: drawSpans(t, "exclusive", 0)}
	if len(x.transactions) > 3 || x.meets(t, h.shared, h.exclusive) {
		return
	}
	x.n++
	h.id = fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "id"), ".", x.n)
	above := x.m.rev + rapid.Int64Range(-1, 3).Draw(t, "above")
	h.bound = max(x.m.rev, above)
	if err := x.writer().Hold(h.id, above, keys.NewSet(h.shared...), keys.NewSet(h.exclusive...)); err != nil || !x.w.Holds(h.id) {
		t.Fatalf("hold: %v", err)
	}
	x.transactions = append(x.transactions, h)
}

// take takes a transaction of those that hold keys, nil if there is none.
func (x *holdMachine) take(t *rapid.T) *heldKeys {
	if len(x.transactions) == 0 {
		return nil
	}
	i := rapid.IntRange(0, len(x.transactions)-1).Draw(t, "transaction")
	h := x.transactions[i]
	x.transactions = slices.Delete(x.transactions, i, i+1)
	return h
}

func (x *holdMachine) abort(t *rapid.T) {
	h := x.take(t)
	if h == nil {
		return
	}
	for range 2 {
		if err := x.writer().Release(h.id); err != nil || x.w.Holds(h.id) {
			t.Fatalf("release: %v", err)
		}
	}
}

// settleOne inserts the changes of a transaction at a revision that nobody has had, and
// publishes.
func (x *holdMachine) settleOne(t *rapid.T) {
	h := x.take(t)
	if h == nil {
		return
	}
	lowest := h.bound
	if h.from == 0 {
		lowest = max(lowest, x.resolvedTo)
	}
	rev := rapid.Int64Range(max(lowest, h.from)+1, max(x.m.rev, x.promised)+4).Draw(t, "revision")
	for slices.ContainsFunc(x.m.log, func(c modelChange) bool { return c.rev == rev }) {
		rev++
	}
	c := x.m.begin(&x.leases, 0)
	c.number = rev
	var ops []Placed
	place := 0
	for range rapid.IntRange(0, 4).Draw(t, "operations") {
		place += rapid.IntRange(0, 2).Draw(t, "elsewhere")
		p := Placed{Place: uint32(place)}
		c.sub = place
		if rapid.Bool().Draw(t, "delete") {
			req := drawDelete(t)
			if !keys.NewSet(h.exclusive...).Covers(keys.FromRange(req.Key, req.RangeEnd)) {
				continue
			}
			p.Op = &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: req}}
			c.del(req)
		} else {
			req := drawPut(t)
			if !keys.NewSet(h.exclusive...).Contains(req.Key) || c.checkPut(req) != nil {
				continue
			}
			p.Op = &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: req}}
			c.put(req)
		}
		place = c.sub
		ops = append(ops, p)
	}
	if err := x.writer().Insert(h.id, rev, ops); err != nil {
		t.Fatalf("insert: %v", err)
	}
	c.insert(func(i, n int) {
		if x.inserted != nil {
			x.inserted(t, i, n)
		}
	})
	if x.w.Rev() != x.m.rev || x.w.Holds(h.id) {
		t.Fatalf("revision %d after an insertion at %d, want %d", x.w.Rev(), rev, x.m.rev)
	}
	sameLeases(t, x.leases.attached, x.m.attached())
	for range rapid.IntRange(0, 2).Draw(t, "transactions behind") {
		x.transact(t)
	}
	x.publish(t)
}

// insert makes the command's changes in all states from its number on, and tells what of the
// log is new.
func (c *modelCmd) insert(told func(i, n int)) {
	m := c.m
	at := slices.IndexFunc(m.states, func(s modelState) bool { return s.rev > c.number })
	if at < 0 {
		at = len(m.states)
	}
	states := m.states
	if states[at-1].rev != c.number {
		states = slices.Insert(states, at, modelState{rev: c.number, kvs: states[at-1].kvs})
	} else {
		at--
	}
	fresh := len(m.log)
	for fresh > 0 && m.log[fresh-1].rev == c.number {
		fresh--
	}
	changes := slices.Clone(m.log[fresh:])
	for i := at; i < len(states); i++ {
		kvs := maps.Clone(states[i].kvs)
		if kvs == nil {
			kvs = make(map[string]*mvccpb.KeyValue)
		}
		for _, ch := range changes {
			if kv := c.now[string(ch.kv.Key)]; kv != nil {
				kvs[string(ch.kv.Key)] = kv
			} else {
				delete(kvs, string(ch.kv.Key))
			}
		}
		states[i].kvs = kvs
	}
	m.states = states
	m.rev = max(m.rev, c.number)
	i, _ := slices.BinarySearchFunc(m.log[:fresh], c.number, func(ch modelChange, rev int64) int { return cmp.Compare(ch.rev, rev) })
	m.log = slices.Insert(m.log[:fresh:fresh], i, changes...)
	told(i, len(changes))
}

// resolve says that no more numbers up to a revision will be given.
func (x *holdMachine) resolve(t *rapid.T) {
	x.publish(t)
	x.promised = max(x.promised, x.m.rev+rapid.Int64Range(-1, 3).Draw(t, "more"))
	x.resolvedTo = max(x.resolvedTo, x.promised)
	x.s.Resolve(x.promised)
}

// hashHeld asks for hashes of states that may still change.
func (x *holdMachine) hashHeld(t *rapid.T) {
	rev := rapid.Int64Range(max(x.pubComp, 1), x.published.rev).Draw(t, "hash revision")
	x.view(func(v *View, _ *model) {
		_, _, _, err := v.HashKV(rev)
		if want := rev > x.heldFrom(); errors.Is(err, ErrHeld) != want || !want && err != nil {
			t.Fatalf("hash at %d: %v, resolved up to %d", rev, err, x.resolved(keys.Span{}))
		}
		for _, span := range drawSpans(t, "resolved", 1) {
			if got, want := v.ResolvedOf(span), x.resolved(span); got != want {
				t.Fatalf("%v is resolved up to %d, want %d", span, got, want)
			}
		}
	})
}

// shift keeps the places of watchers in the model's log when changes are inserted, which none
// of them may have gone past if it wants one.
func (x *holdMachine) shift(t *rapid.T, i, n int) {
	for _, g := range x.groups {
		for _, c := range g.checks {
			if c.seen <= i {
				continue
			}
			for _, ch := range x.m.log[i : i+n] {
				if c.wants(ch) {
					t.Fatalf("watcher %+v had events up to %d before one at %d came", c.opts, c.last, ch.rev)
				}
			}
			c.seen += n
		}
	}
}

func TestHoldModel(t *testing.T) {
	for i := range 10 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				runWatchMachine(t, func(w *watchMachine) map[string]func(*rapid.T) {
					x := &holdMachine{watchMachine: w}
					x.inserted = x.shift
					return map[string]func(*rapid.T){
						"begin": x.begin, "begin again": x.begin, "abort": x.abort, "settle": x.settleOne, "settle again": x.settleOne,
						"resolve": x.resolve, "hash held": x.hashHeld, "range": x.rangeNow, "stream": x.stream, "read txn": x.readTxn,
						"hold": x.hold, "release": x.release, "reload": x.reload,
					}
				})
			})
		})
	}
}

// A hold is what it was after a restart, and one of a later form stops the store.
func TestHoldRecord(t *testing.T) {
	t.Parallel()
	e := memEnv(t)
	e.put("a", "1")
	e.apply(func(w *Writer) {
		if err := w.Hold("x", 4, nil, keys.NewSet(keys.Point([]byte("a")))); err != nil {
			t.Fatal(err)
		}
	})
	restart := func() {
		e.close()
		e.open()
	}
	restart()
	for rev := int64(2); rev < 7; rev++ {
		if got := e.s.ResolvedOf(keys.Point([]byte("a"))); got != min(rev, 4) || e.s.HeldFrom() != 4 {
			t.Fatalf("resolved up to %d at %d, held from %d, want %d and 4", got, rev, e.s.HeldFrom(), min(rev, 4))
		}
		e.put("b", "1")
	}
	restart()
	if got := e.s.ResolvedOf(); got != 4 {
		t.Fatalf("resolved up to %d after a restart, want 4", got)
	}
	for _, b := range [][]byte{nil, {2}, {1}, {1, 2}, append((&hold{bound: 2}).encode(), 0)} {
		if _, err := decodeHold("x", b); err == nil {
			t.Fatalf("a hold of %x was read", b)
		}
	}
	if _, err := decodeHold("x", bytes.Clone((&hold{bound: 2}).encode())); err != nil {
		t.Fatal(err)
	}
}
