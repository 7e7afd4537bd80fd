package sim

import (
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/mvcc"
)

// heard is what a watcher heard at one time.
type heard struct {
	at     time.Time
	events []*mvccpb.Event
	// progress is the revision of a progress notice, 0 for events.
	progress int64
}

// watcher is a client that watches a range, on any node that runs, as clientv3 would:
// where its node dies it goes on elsewhere, behind what it has heard.
type watcher struct {
	c        *cluster
	key, end []byte
	// pick returns the node to watch on, nil if none runs.
	pick func() *process
	// wake, if not nil, makes the watcher ask for progress.
	wake chan struct{}

	mu sync.Mutex
	// first is the first revision that the watcher is to hear of, 0 before it has
	// been created; next is that of now. Protected by mu.
	first, next int64
	log         []heard
	// compacted is the revision that ended the watcher, 0 while it lives. Protected by
	// mu.
	compacted int64
	// moves counts the nodes that it was on. Protected by mu.
	moves int
	// where is the node that it is on. Protected by mu.
	where uint64
	err   error
}

// run watches until the cluster's context ends. first is the first revision, 0 for
// those from now on.
func (w *watcher) run(stop <-chan struct{}) {
	for {
		w.mu.Lock()
		ended := w.compacted != 0 || w.err != nil
		w.mu.Unlock()
		if ended {
			return
		}
		p := w.pick()
		if p == nil {
			select {
			case <-time.After(5 * time.Millisecond):
				continue
			case <-stop:
				return
			}
		}
		if !w.on(p, stop) {
			return
		}
	}
}

// watchID is the id of the only watcher of a stream.
const watchID = 1

// on watches on one node and reports whether that has died.
func (w *watcher) on(p *process, stop <-chan struct{}) bool {
	if !p.enter() {
		return true
	}
	defer p.leave()
	g := p.router.NewWatchGroup()
	defer g.Close()
	w.mu.Lock()
	w.moves++
	w.where = p.node.id
	start := w.next
	w.mu.Unlock()
	rev := g.Add(watchID, mvcc.WatchOptions{Key: w.key, End: w.end, Start: start})
	if p.dead.Load() {
		return true
	}
	w.mu.Lock()
	if w.next == 0 {
		w.first, w.next = rev+1, rev+1
	}
	w.mu.Unlock()
	asking := false
	for {
		b, ok, err := g.Poll()
		switch {
		case p.dead.Load():
			return true
		case err != nil:
			w.fail(err)
			return false
		case ok:
			if !w.take(b) {
				return false
			}
			continue
		}
		if asking {
			rev, ok, later := g.ProgressOf(watchID)
			if p.dead.Load() {
				return true
			}
			if ok {
				w.progress(rev)
			}
			asking = later
		}
		select {
		case <-g.Ready():
		case <-w.wake:
			asking = true
		case <-p.gone:
			return true
		case <-stop:
			return false
		}
	}
}

func (w *watcher) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

func (w *watcher) take(b mvcc.WatchBatch) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b.CompactRev != 0 {
		w.compacted = b.CompactRev
		return false
	}
	w.log = append(w.log, heard{at: time.Now(), events: b.Events})
	w.next = max(w.next, b.Events[len(b.Events)-1].Kv.ModRevision+1)
	return true
}

func (w *watcher) progress(rev int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, heard{at: time.Now(), progress: rev})
	w.next = max(w.next, rev+1)
}

// reached returns the revision up to which the watcher has heard everything.
func (w *watcher) reached() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next - 1
}

// done reports whether a compaction or a fault has ended the watcher.
func (w *watcher) done() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.compacted != 0 || w.err != nil
}

// events returns all events heard.
func (w *watcher) events() []*mvccpb.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*mvccpb.Event
	for _, h := range w.log {
		all = append(all, h.events...)
	}
	return all
}

// check holds what the watcher heard against the truth. Where it was not ended it must
// have heard everything up to revision last.
func (w *watcher) check(t *truth, last int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	if w.next == 0 {
		return nil // it never came to be created
	}
	if w.compacted != 0 {
		if w.next >= w.compacted {
			return fmt.Errorf("ended by the compaction at %d, and has heard everything up to %d", w.compacted, w.next-1)
		}
		last = w.next - 1
	} else if w.next <= last {
		last = w.next - 1
	}
	span := keys.FromRange(w.key, w.end)
	var want []*mvccpb.Event
	for _, rev := range t.revs {
		if rev < w.first || rev > last {
			continue
		}
		for _, e := range t.events[rev] {
			if span.Contains(e.Kv.Key) {
				want = append(want, e)
			}
		}
	}
	at := 0
	before := int64(0)
	for _, h := range w.log {
		if h.progress != 0 {
			if at < len(want) && want[at].Kv.ModRevision <= h.progress {
				return fmt.Errorf("progress %d before the event %v", h.progress, want[at])
			}
			continue
		}
		if h.events[0].Kv.ModRevision == before {
			return fmt.Errorf("revision %d comes in two batches", before)
		}
		for _, e := range h.events {
			if at == len(want) {
				return fmt.Errorf("heard %v, expected nothing more", e)
			}
			if w := want[at]; e.Type != w.Type || string(e.Kv.Key) != string(w.Kv.Key) || e.Kv.ModRevision != w.Kv.ModRevision || string(e.Kv.Value) != string(w.Kv.Value) {
				return fmt.Errorf("heard %v, expected %v", e, w)
			}
			at++
			before = e.Kv.ModRevision
		}
	}
	if at < len(want) {
		return fmt.Errorf("%d events are missing, the first is %v", len(want)-at, want[at])
	}
	return nil
}
