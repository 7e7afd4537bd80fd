package mvcc

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// entries returns how many entries the history has.
func (e *env) entries(t *testing.T) (n int) {
	t.Helper()
	iter, err := e.db.NewIter(e.s.layout.historyBounds(stamp{}, e.s.Rev()))
	if err != nil {
		t.Fatal(err)
	}
	for ok := iter.First(); ok; ok = iter.Next() {
		n++
	}
	if err := iter.Close(); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestManyChangesOfOneCommand deletes more keys at once than an entry of the history
// takes: all of it is watched, read as it was, and swept.
func TestManyChangesOfOneCommand(t *testing.T) {
	e := newEnv(t, vfs.NewMem())
	defer e.close()
	const n = 2*maxRun + 5
	put := &pb.TxnRequest{}
	for i := range n {
		req := &pb.PutRequest{Key: fmt.Appendf(nil, "key/%03d", i), Value: []byte("v")}
		put.Success = append(put.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: req}})
	}
	e.apply(func(w *Writer) {
		if _, err := w.Txn(put, Opts{}); err != nil {
			t.Fatal(err)
		}
	})
	before := e.s.Rev()
	e.del("key/", "key0")
	e.put("other", "v")
	if got := e.entries(t); got != 3+3+1 {
		t.Errorf("%d entries of history", got)
	}
	v := e.s.View()
	defer v.Close()
	resp, err := v.Range(background, &pb.RangeRequest{Key: []byte("key/"), RangeEnd: []byte("key0"), Revision: before})
	if err != nil || resp.Count != n {
		t.Errorf("%d keys before they were deleted, %v", resp.GetCount(), err)
	}
	g := e.s.NewGroup()
	defer g.Close()
	g.Add(1, WatchOptions{Key: []byte("key/"), End: []byte("key0"), Start: before})
	var seen []string
	for {
		b, ok, err := g.Poll()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		for _, ev := range b.Events {
			seen = append(seen, fmt.Sprintf("%d %s %s", ev.Kv.ModRevision-before, ev.Type, ev.Kv.Key))
		}
	}
	var want []string
	for i, kind := range []string{"PUT", "DELETE"} {
		for k := range n {
			want = append(want, fmt.Sprintf("%d %s key/%03d", i, kind, k))
		}
	}
	if !slices.Equal(seen, want) {
		t.Errorf("%d events, not %d, or others", len(seen), len(want))
	}
	v.Close()
	e.apply(func(w *Writer) {
		if err := w.Compact(e.s.Rev()); err != nil {
			t.Fatal(err)
		}
	})
	// Each step ends behind an entry.
	steps := 0
	for done := false; !done; steps++ {
		if done, err = e.s.Sweep(1); err != nil || steps > 10 {
			t.Fatal(steps, err)
		}
	}
	if steps < 6 || e.entries(t) != 1 || e.s.Size() != int64(len("other")+len("v")+versionOverhead) {
		t.Errorf("swept in %d steps: %d entries, %d bytes left", steps, e.entries(t), e.s.Size())
	}
}

// TestDamagedRun reads an entry whose list of keys is cut off.
func TestDamagedRun(t *testing.T) {
	e := newEnv(t, vfs.NewMem())
	defer e.close()
	e.put("key", "v")
	k := append(e.s.layout.appendHistory(nil, stamp{rev: e.s.Rev()}), 0, 0, 0, 2)
	if err := e.db.Set(k, []byte("\x03key\x05other"[:7]), pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	h, err := openHistory(e.db, e.s.layout, stamp{rev: 2}, e.s.Rev())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	n := 0
	for h.next() {
		n++
	}
	if n != 2 || h.err == nil {
		t.Errorf("%d changes, then %v", n, h.err)
	}
}
