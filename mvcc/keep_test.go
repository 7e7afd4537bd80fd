package mvcc

import (
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// A watcher has had everything when a transaction holds some of its keys. Before it reads on, the
// transaction is settled and history compacted. It must not miss what it would have been offered had
// there been no hold; a second compaction may take it, as from any watcher that doesn't read.
func TestCompactionBehindAHold(t *testing.T) {
	for _, compactions := range []int{1, 2} {
		for name, span := range map[string]keys.Span{"point": keys.Point([]byte("b")), "range": {Start: []byte("a"), End: []byte("d")}} {
			t.Run(fmt.Sprint(name, compactions), func(t *testing.T) {
				e := memEnv(t)
				e.put("b", "1")
				e.put("c", "1")
				g := e.s.NewGroup()
				defer g.Close()
				g.Add(1, WatchOptions{Key: span.Start, End: span.RangeEnd(), PrevKV: true})
				var rev int64
				held := keys.NewSet(keys.Point([]byte("b")))
				e.apply(func(w *Writer) {
					if err := w.Hold("t", 0, nil, held); err != nil {
						t.Fatal(err)
					}
				})
				e.put("c", "2")
				e.apply(func(w *Writer) {
					rev = w.Rev() + 1
					if err := w.Insert("t", rev, []Placed{{Op: opPut("b", "2")}}); err != nil {
						t.Fatal(err)
					}
				})
				last := e.put("b", "3")
				want := []string{"b 2 1", "b 3 2"}
				if name == "range" {
					want = []string{"c 2 1", "b 2 1", "b 3 2"}
				}
				for range compactions {
					last = e.put("x", "")
					if err := e.compact(last); err != nil {
						t.Fatal(err)
					}
					for range 10 {
						if _, err := e.s.Sweep(1000); err != nil {
							t.Fatal(err)
						}
					}
				}
				var got []string
				for {
					b, ok, err := g.Poll()
					if err != nil {
						t.Fatal(err)
					}
					if compactions > 1 {
						if !ok || b.CompactRev != last {
							t.Errorf("after two compactions: %v, %v", b, ok)
						}
						break
					}
					if !ok {
						break
					}
					if b.CompactRev != 0 {
						t.Fatalf("compacted at %d; the watcher had everything before", b.CompactRev)
					}
					for _, ev := range b.Events {
						got = append(got, described(ev))
					}
				}
				if compactions == 1 && fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("got %q, want %q", got, want)
				}
				// Nothing is kept any more.
				e.sweepAll()
				if !e.s.SweepDone(last) {
					t.Error("history is kept for a watcher that has read it")
				}
			})
		}
	}
}

// described returns key, value and previous value of an event.
func described(e *mvccpb.Event) string {
	return fmt.Sprintf("%s %s %s", e.Kv.Key, e.Kv.Value, e.GetPrevKv().GetValue())
}

// A hold may be from a revision on that is not resolved yet, since other commands up to there are still to come. What they change
// reaches the watchers of held keys while these are held, and no progress goes ahead of it.
func TestWatchersBelowTheBoundOfAHold(t *testing.T) {
	e := memEnv(t)
	e.put("a", "1")
	g := e.s.NewGroup()
	defer g.Close()
	g.Add(1, WatchOptions{Key: []byte("a"), End: []byte("d")})
	e.apply(func(w *Writer) {
		if err := w.Hold("t", 4, nil, keys.NewSet(keys.Point([]byte("a")))); err != nil {
			t.Fatal(err)
		}
	})
	if _, ok, err := g.Poll(); ok || err != nil {
		t.Fatalf("an event: %v, %v", ok, err)
	}
	rev := e.put("b", "1")
	e.s.Resolve(4)
	if got, ok := g.Progress(); ok && got >= rev {
		t.Errorf("progress %d before the event at %d", got, rev)
	}
	b, ok, err := g.Poll()
	if err != nil || !ok || len(b.Events) != 1 || string(b.Events[0].Kv.Key) != "b" {
		t.Fatalf("%v, %v, %v", b, ok, err)
	}
	if _, ok, err = g.Poll(); ok || err != nil {
		t.Fatalf("an event: %v, %v", ok, err)
	}
	if got, ok := g.Progress(); !ok || got != 4 {
		t.Errorf("progress %d, %v; want that of the hold's bound", got, ok)
	}
}

// A watcher that started behind what is resolved for another, whose key is held, keeps the group from telling how far it is until the hold
// has gone: it is woken then.
func TestProgressWaitsForHolds(t *testing.T) {
	e := memEnv(t)
	e.put("a", "1")
	e.apply(func(w *Writer) {
		if err := w.Hold("t", 2, nil, keys.NewSet(keys.Point([]byte("x")))); err != nil {
			t.Fatal(err)
		}
	})
	rev := e.put("b", "1")
	g := e.s.NewGroup()
	defer g.Close()
	g.Add(1, WatchOptions{Key: []byte("x"), Start: rev})
	g.Add(2, WatchOptions{Key: []byte("c"), Start: rev})
	for b, ok, err := g.Poll(); ok || err != nil; b, ok, err = g.Poll() {
		t.Fatalf("%v, %v", b, err)
	}
	if _, ok := g.Progress(); ok || !g.Held() {
		t.Fatalf("progress %v, held %v", ok, g.Held())
	}
	select {
	case <-g.Ready(): // it was just added
	default:
	}
	e.apply(func(w *Writer) {
		if err := w.Release("t"); err != nil {
			t.Fatal(err)
		}
	})
	select {
	case <-g.Ready():
	default:
		t.Error("the group is not woken")
	}
	for b, ok, err := g.Poll(); ok || err != nil; b, ok, err = g.Poll() {
		t.Fatalf("%v, %v", b, err)
	}
	if got, ok := g.Progress(); !ok || got != rev || g.Held() {
		t.Errorf("progress %d, %v, held %v, want %d", got, ok, g.Held(), rev)
	}
}
