package lock

import (
	"context"
	"errors"
	"slices"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/lock/queue"
	"github.com/latchkey-db/latchkey/mvcc"
)

// tracker follows the keys of one queue on this node, for all who wait in it here. It
// begins with the first of them and ends with the last.
type tracker struct {
	s      *Service
	prefix string
	// stop ends it. The service's mu is held.
	stop context.CancelFunc
	// waiting is the number of waiters, named that of those whose clients have a name; seen says that
	// there were such at the last look for deadlocks. The service's mu protects them.
	waiting, named int
	seen           bool

	mu sync.Mutex
	// waiters are by key; protected by mu, with what follows. Two calls of one lease wait
	// for one key.
	waiters map[string][]*waiter
	// positions is how many waiters want to know where they stand.
	positions int
	// queue is what this node knows of the queue at revision rev, nil while it is read.
	queue *queue.Queue
	rev   int64
}

// waiter is a call that waits for its turn.
type waiter struct {
	key     string
	created int64
	// client is who waits, as it calls itself, and attempt names the call; both are empty for who
	// has no part in deadlocks.
	client, attempt string
	// tr follows the queue, from join on.
	tr *tracker
	// alone says that the waiter's turn comes when there is nothing before it, whatever
	// the entries say of themselves.
	alone bool
	// moved, unless it is nil, has room for the last position that the waiter was seen at:
	// how many are before it.
	moved chan Position
	// soon, unless it is nil, has room for the word that only one is before the waiter, which it hears once.
	soon   chan struct{}
	warned bool
	// turn has room for the one thing that the waiter is told.
	turn chan turn
	told bool
}

// Position is how many were before a place at a revision.
type Position struct {
	Before   int
	Revision int64
}

// move tells the waiter where it stands, in place of what it has not looked at. The
// tracker's mu must be held.
func (w *waiter) move(p Position) {
	select {
	case <-w.moved:
	default:
	}
	w.moved <- p
}

// turn is what a waiter waits for: that it was its turn at revision rev, or why it need not
// wait on.
type turn struct {
	rev int64
	err error
}

// tell tells the waiter what it waits for. The tracker's mu must be held.
func (w *waiter) tell(t turn) {
	if !w.told {
		w.told = true
		w.turn <- t
	}
}

// join has a waiter told of its turn in a queue, until leave is called.
func (s *Service) join(prefix string, w *waiter) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := context.Cause(s.ctx); err != nil {
		return nil, err
	}
	tr := s.tracked[prefix]
	if tr == nil {
		var ctx context.Context
		tr = &tracker{s: s, prefix: prefix, waiters: make(map[string][]*waiter)}
		ctx, tr.stop = context.WithCancel(s.ctx)
		s.tracked[prefix] = tr
		s.tracking.Go(func() { tr.run(ctx) })
	}
	tr.waiting++
	w.tr = tr
	s.note(w)
	tr.add(w)
	return func() { s.leave(tr, w) }, nil
}

func (s *Service) leave(tr *tracker, w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tr.remove(w)
	s.forget(w)
	if tr.waiting--; tr.waiting == 0 {
		s.drop(tr)
	}
}

// drop ends a tracker. mu must be held.
func (s *Service) drop(tr *tracker) {
	tr.stop()
	if s.tracked[tr.prefix] == tr {
		delete(s.tracked, tr.prefix)
	}
}

func (tr *tracker) add(w *waiter) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.waiters[w.key] = append(tr.waiters[w.key], w)
	if w.moved != nil {
		tr.positions++
	}
	if tr.queue != nil {
		tr.judge(w)
		tr.warn()
		tr.position()
	}
}

func (tr *tracker) remove(w *waiter) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if w.moved != nil {
		tr.positions--
	}
	rest := slices.DeleteFunc(tr.waiters[w.key], func(o *waiter) bool { return o == w })
	if tr.waiters[w.key] = rest; len(rest) == 0 {
		delete(tr.waiters, w.key)
	}
}

// judge tells a waiter what the queue says of it, if anything. mu must be held.
func (tr *tracker) judge(w *waiter) {
	e := tr.queue.Get(w.key)
	switch {
	case e != nil && e.Created == w.created:
		if e == tr.queue.First() || e.Holds && !w.alone {
			w.tell(turn{rev: tr.rev})
		}
	case e != nil && e.Created > w.created, e == nil && w.created <= tr.rev:
		w.tell(turn{err: ErrLost})
	default: // its key is still to come
	}
}

// run follows the queue until ctx ends. When it can't any more all who wait hear why.
func (tr *tracker) run(ctx context.Context) {
	err := tr.track(ctx)
	tr.s.mu.Lock()
	tr.s.drop(tr)
	tr.s.mu.Unlock()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, ws := range tr.waiters {
		for _, w := range ws {
			w.tell(turn{err: err})
		}
	}
}

// errOvertaken says that history which a watch needed is compacted.
var errOvertaken = errors.New("a compaction has overtaken the watch")

// only is the id of a watcher that is alone.
const only = 1

func (tr *tracker) track(ctx context.Context) error {
	w := tr.s.node.Watchers()
	defer w.Close()
	for {
		err := tr.trackFrom(ctx, w)
		if !errors.Is(err, errOvertaken) {
			return err
		}
	}
}

// trackFrom reads the queue as it is and follows it from there.
func (tr *tracker) trackFrom(ctx context.Context, w Watchers) error {
	end := keys.PrefixEnd([]byte(tr.prefix))
	// The watcher is there before the queue is read: whatever the read does not show comes
	// as an event.
	from := w.Add(only, mvcc.WatchOptions{Key: []byte(tr.prefix), End: end})
	defer w.Remove(only)
	resp, err := tr.s.node.Peek(ctx, &pb.RangeRequest{
		Key: []byte(tr.prefix), RangeEnd: end, SortTarget: pb.RangeRequest_CREATE, SortOrder: pb.RangeRequest_ASCEND,
	}, from)
	if err != nil {
		return err
	}
	tr.load(resp)
	o := observer{watchers: w}
	err = o.follow(ctx, func(b *mvcc.WatchBatch) (bool, error) {
		tr.apply(b.Events)
		return false, nil
	})
	if err == nil {
		return errOvertaken
	}
	return err
}

// load takes what the queue is at a revision.
func (tr *tracker) load(resp *pb.RangeResponse) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.queue, tr.rev = queue.New(resp.Kvs), resp.Header.Revision
	tr.queue.Advance(func(*queue.Key) {})
	for _, ws := range tr.waiters {
		for _, w := range ws {
			tr.judge(w)
		}
	}
	tr.warn()
	tr.position()
}

// apply takes changes of the queue, in the order of revisions, and tells those of it whom
// they concern: who stands first now, and who has gone.
func (tr *tracker) apply(events []*mvccpb.Event) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, ev := range events {
		if ev.Kv.ModRevision <= tr.rev {
			continue // the queue was read with it
		}
		if ev.Type == mvccpb.Event_DELETE {
			tr.queue.Delete(string(ev.Kv.Key), ev.Kv.ModRevision)
		} else {
			tr.queue.Put(ev.Kv)
		}
	}
	if len(events) > 0 {
		tr.rev = max(tr.rev, events[len(events)-1].Kv.ModRevision)
	}
	for _, ev := range events {
		tr.judgeAll(string(ev.Kv.Key))
	}
	tr.queue.Advance(func(e *queue.Key) { tr.judgeAll(e.Name) })
	if first := tr.queue.First(); first != nil {
		tr.judgeAll(first.Name)
	}
	tr.warn()
	tr.position()
}

// warn tells the second of the queue, once, that only one is before it. mu must be held.
func (tr *tracker) warn() {
	first := tr.queue.First()
	if first == nil || first.Next() == nil {
		return
	}
	second := first.Next()
	for _, w := range tr.waiters[second.Name] {
		if w.soon != nil && w.created == second.Created && !w.warned {
			w.warned = true
			w.soon <- struct{}{}
		}
	}
}

// position tells those who want to know it where they stand. mu must be held.
func (tr *tracker) position() {
	if tr.positions == 0 {
		return
	}
	before := 0
	for e := tr.queue.First(); e != nil; e = e.Next() {
		for _, w := range tr.waiters[e.Name] {
			if w.moved != nil && w.created == e.Created && !w.told {
				w.move(Position{before, tr.rev})
			}
		}
		before++
	}
}

// judgeAll judges who waits for a key. mu must be held.
func (tr *tracker) judgeAll(key string) {
	for _, w := range tr.waiters[key] {
		tr.judge(w)
	}
}
