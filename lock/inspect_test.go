package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// names returns the names of a page, with how many hold and wait.
func (p *Page) names() (all []string) {
	for _, l := range p.Locks {
		all = append(all, fmt.Sprint(l.Name, " ", len(l.Holders), "+", l.Waiters))
	}
	return all
}

// Lists have the locks of all who take some, and no other keys.
func TestList(t *testing.T) {
	runBoth(t, func(e *env) {
		e.grant(0x1, 0x9)
		for _, name := range []string{"l", "l", "l", "a", "m/x", "m"} {
			r := ask("")
			r.Name = name
			e.acquire(r)
		}
		e.lock("a", 0x1)
		e.lock("z", 0x9)
		for _, p := range []*pb.PutRequest{{Key: []byte("plain/1")}, {Key: []byte("service/one"), Lease: 0x1}, {Key: []byte("b/1")}} {
			_, err := e.router.Put(e.ctx(), p)
			check(t, err)
		}
		for _, tc := range []struct {
			r    ListRequest
			want []string
		}{
			{ListRequest{}, []string{"a 1+1", "l 1+2", "m 1+1", "m/x 1+0", "z 1+0"}},
			{ListRequest{ByWaiters: true}, []string{"l 1+2", "a 1+1", "m 1+1", "m/x 1+0", "z 1+0"}},
			{ListRequest{Prefix: "m"}, []string{"m 1+1", "m/x 1+0"}},
		} {
			page, err := e.List(e.ctx(), &tc.r)
			check(t, err)
			if !slices.Equal(page.names(), tc.want) || page.Cursor != "" || page.Revision == 0 {
				t.Errorf("%+v: %q, %+v, want %q", tc.r, page.names(), page, tc.want)
			}
			var all []string
			for r := tc.r; ; {
				r.Limit = 2
				page, err := e.List(e.ctx(), &r)
				check(t, err)
				if len(page.Locks) > 2 {
					t.Fatalf("%q", page.names())
				}
				all = append(all, page.names()...)
				if r.Cursor = page.Cursor; r.Cursor == "" {
					break
				}
			}
			if !slices.Equal(all, tc.want) {
				t.Errorf("%+v in pages: %q, want %q", tc.r, all, tc.want)
			}
		}
		for _, r := range []*ListRequest{{Limit: -1}, {Limit: MaxListed + 1}, {ByWaiters: true, Cursor: "x"}} {
			var wrong *FieldError
			if _, err := e.List(e.ctx(), r); !errors.As(err, &wrong) {
				t.Errorf("%+v: %v", r, err)
			}
		}
	})
}

// watching is a call of Watch that is under way.
type watching struct {
	mu sync.Mutex
	// told is protected by mu, with last.
	told   []string
	last   int64
	cancel context.CancelFunc
	done   chan error
}

func (e *env) watch(from int64) *watching {
	ctx, cancel := context.WithCancel(e.ctx())
	w := &watching{cancel: cancel, done: make(chan error, 1)}
	go func() {
		w.done <- e.Watch(ctx, "l", from, func(rev int64, events []Event) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, ev := range events {
				w.told = append(w.told, strings.TrimSuffix(fmt.Sprint(ev.Kind, " ", ev.Client, " ", ev.Reason), " "))
			}
			if rev < w.last || rev == w.last && len(events) > 0 {
				e.t.Errorf("events of %d after %d", rev, w.last)
			}
			w.last = rev
			return nil
		})
	}()
	synctest.Wait()
	return w
}

// heard returns what the watch was told since it was asked last.
func (w *watching) heard() []string {
	pause()
	w.mu.Lock()
	defer w.mu.Unlock()
	told := w.told
	w.told = nil
	return told
}

// A watch tells what is there, and then all that happens, in order; another goes on where it
// ended.
func TestWatch(t *testing.T) {
	runBoth(t, func(e *env) {
		a := e.granted(e.acquire(ask("a")))
		b := e.acquire(ask("b"))
		w := e.watch(0)
		expect := func(what string, w *watching, want ...string) {
			t.Helper()
			if got := w.heard(); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		expect("at first", w, "queued a", "queued b", "granted a")
		c := e.acquire(ask("c"))
		expect("asked", w, "queued c")
		e.granted(e.acquire(ask("a")))
		expect("asked again", w)
		check(t, e.Release(e.ctx(), "l", "a", a.Token, ""))
		expect("one of two released", w)
		e.release(a)
		expect("released", w, "released a", "granted b")
		w.cancel()
		if err := <-w.done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		from := w.last + 1
		c.cancel()
		e.refused(c, context.Canceled)
		e.release(e.granted(b))
		again := e.watch(from)
		expect("from there on", again, "left c", "ended b")
		d := e.granted(e.acquire(ask("d")))
		expect("taken", again, "queued d", "granted d")
		time.Sleep(15 * time.Second)
		expect("expired", again, "expired d")
		short := ask("e")
		short.TTL = time.Second
		e.granted(e.acquire(short))
		time.Sleep(300 * time.Millisecond)
		// A lease has less than a second left when this watch first asks for it.
		late := e.watch(0)
		time.Sleep(5 * time.Second)
		expect("watched in its last second", late, "queued e", "granted e", "expired e")
		late.cancel()
		<-late.done
		again.cancel()
		<-again.done
		_ = d
	})
}

// History that is compacted ends a watch that needs it, and says so.
func TestWatchCompacted(t *testing.T) {
	run(t, whole, func(e *env) {
		a := e.granted(e.acquire(ask("a")))
		e.release(a)
		b := e.granted(e.acquire(ask("b")))
		_, err := e.router.Compact(e.ctx(), &pb.CompactionRequest{Revision: b.Token})
		check(t, err)
		if err := <-e.watch(a.Token).done; err == nil {
			t.Error("a watch from compacted history ended well")
		}
	})
}
