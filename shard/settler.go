package shard

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
)

const (
	// maxFinishes and maxFinishOps bound what one command finishes: transactions, and
	// operations as far as one transaction fits.
	maxFinishes  = 256
	maxFinishOps = 4096
	// settlePause lies between an attempt that failed and the next.
	settlePause = 20 * time.Millisecond
	// doubtTicks is after how many ticks of holding keys a transaction's home is asked what
	// became of it, and again.
	doubtTicks = 3
)

// settler sees, while this node leads a shard, that transactions over several shards come to
// an end: it has the other participants of those that the shard has committed make their
// changes, then forgets them; and it asks the homes of those that hold keys here for long.
// Every step may be repeated, so that a new leader resumes what it finds.
type settler struct {
	d  *Data
	wg sync.WaitGroup

	mu sync.Mutex
	// term is nil while this node does not lead. Protected by mu, with all that is in it;
	// closed too.
	term   *settling
	closed bool
}

// settling is what a leader has to do in one term.
type settling struct {
	ctx    context.Context //nolint:containedctx // lasts as long as the term
	cancel context.CancelFunc
	// lanes lead to the participants. None waits for another.
	lanes map[uint64]*finishes
	// left counts the lanes that a transaction is in.
	left map[commit.ID]int
	// gone are the transactions that all have finished; forgetting says that some are being
	// forgotten.
	gone       []commit.ID
	forgetting bool
	// doubts count the ticks for which transactions have held keys; asking are those that
	// are being asked about.
	doubts map[commit.ID]int
	asking map[commit.ID]struct{}
}

// finishes is what one participant has still to finish, in the order of the commits.
type finishes struct {
	list []commit.Finish
	// running says that a goroutine sees to them.
	running bool
}

func newSettler(d *Data) *settler { return &settler{d: d} }

// began starts a term with the transactions that are committed.
func (s *settler) began() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endedLocked()
	if s.closed {
		return
	}
	t := &settling{
		lanes: make(map[uint64]*finishes), left: make(map[commit.ID]int),
		doubts: make(map[commit.ID]int), asking: make(map[commit.ID]struct{}),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	s.term = t
	for id, c := range s.d.transactions.AllCommitted() {
		s.addLocked(id, c)
	}
	for id := range s.d.transactions.AllHeld() {
		t.doubts[id] = doubtTicks // they have held keys since an earlier term
	}
	s.startLocked()
}

// ended ends the term.
func (s *settler) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endedLocked()
}

// endedLocked is ended. s.mu must be held.
func (s *settler) endedLocked() {
	if s.term != nil {
		s.term.cancel()
		s.term = nil
	}
}

// close stops the settler.
func (s *settler) close() {
	s.mu.Lock()
	s.closed = true
	s.endedLocked()
	s.mu.Unlock()
	s.wg.Wait()
}

// decided takes over transactions that have just been committed.
func (s *settler) decided(ids []commit.ID) {
	if len(ids) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term == nil {
		return
	}
	for _, id := range ids {
		if c, ok := s.d.transactions.Committed(id); ok {
			s.addLocked(id, c)
		}
	}
	s.startLocked()
}

// addLocked takes over a transaction, unless it is there. s.mu must be held.
func (s *settler) addLocked(id commit.ID, c commit.Committed) {
	t := s.term
	if t.left[id] > 0 {
		return
	}
	for _, share := range c.Shares {
		l := t.lanes[share.ShardID]
		if l == nil {
			l = &finishes{}
			t.lanes[share.ShardID] = l
		}
		l.list = append(l.list, commit.Finish{ID: id, Rev: c.Rev, Ops: share.Ops})
		t.left[id]++
	}
	if t.left[id] == 0 {
		t.gone = append(t.gone, id)
	}
}

// tick starts what is to be done. The leader calls it.
func (s *settler) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term == nil {
		return
	}
	s.startLocked()
	s.forgetLocked()
	s.doubtLocked()
}

// startLocked starts the lanes that have something to do. s.mu must be held.
func (s *settler) startLocked() {
	if s.d.others.Load() == nil {
		return
	}
	for shardID, l := range s.term.lanes {
		if !l.running && len(l.list) > 0 {
			l.running = true
			t := s.term
			s.wg.Go(func() { s.finish(t, shardID, l) })
		}
	}
}

// finish has a participant finish what is in its lane, until there is nothing or the term
// ends.
func (s *settler) finish(t *settling, shardID uint64, l *finishes) {
	for {
		list := s.next(t, l)
		if len(list) == 0 {
			return
		}
		err := (*s.d.others.Load()).Finish(t.ctx, shardID, list)
		if err == nil {
			s.finished(t, l, len(list))
			continue
		}
		if !errors.Is(err, raft.ErrNotLeader) && !errors.Is(err, raft.ErrStopped) && t.ctx.Err() == nil {
			s.d.log.Warn("changes of transactions are delayed; they are tried again",
				slog.Uint64("at", shardID), slog.Any("error", err))
		}
		select {
		case <-time.After(settlePause):
		case <-t.ctx.Done():
		}
	}
}

// next returns the first of a lane, which stay there until they are finished. Where there are
// none the lane is at rest.
func (s *settler) next(t *settling, l *finishes) []commit.Finish {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term != t {
		return nil
	}
	l.running = len(l.list) > 0
	n, ops := 0, 0
	for n < min(len(l.list), maxFinishes) && (n == 0 || ops+l.list[n].Ops.Len() <= maxFinishOps) {
		ops += l.list[n].Ops.Len()
		n++
	}
	return l.list[:n]
}

// finished takes the first n of a lane out of it, and forgets those that are in no other.
func (s *settler) finished(t *settling, l *finishes, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term != t {
		return
	}
	awaited := false
	for _, f := range l.list[:n] {
		if t.left[f.ID]--; t.left[f.ID] == 0 {
			delete(t.left, f.ID)
			t.gone = append(t.gone, f.ID)
			c, _ := s.d.transactions.Committed(f.ID)
			awaited = awaited || c.Ended != lease.Ref{}
		}
	}
	if l.list = l.list[n:]; len(l.list) == 0 {
		l.list = nil
	}
	if awaited || len(t.gone) >= maxFinishes {
		s.forgetLocked()
	}
}

// forgetLocked removes the records of transactions that all have finished. Nobody waits for that but
// who grants or renews a lease that has ended, and
// a command for each would cost as much as what it is for: ticks call it, and finished when there
// are many, or an end of a lease. s.mu must be held.
func (s *settler) forgetLocked() {
	t := s.term
	if t.forgetting || len(t.gone) == 0 {
		return
	}
	ids := t.gone[:min(len(t.gone), maxFinishes)]
	settled := func(_ any, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		t.forgetting = false
		if err != nil || s.term != t {
			return // the next tick tries again
		}
		if t.gone = t.gone[len(ids):]; len(t.gone) == 0 {
			t.gone = nil
		}
		s.forgetLocked()
	}
	p := raft.Proposal{Kind: raft.Kind(kindForgetCommitted), Payload: commit.AppendIDs(nil, ids...)}
	t.forgetting = s.d.replica.SubmitLater(p, nil, settled) == nil
}

// doubtLocked counts how long transactions have held keys, and asks about those that have for
// long. s.mu must be held.
func (s *settler) doubtLocked() {
	t := s.term
	held := s.d.transactions.AllHeld()
	for id := range t.doubts {
		if _, ok := held[id]; !ok {
			delete(t.doubts, id)
		}
	}
	if s.d.others.Load() == nil {
		return
	}
	for id, h := range held {
		if t.doubts[id]++; t.doubts[id] < doubtTicks {
			continue
		}
		if _, asked := t.asking[id]; asked {
			continue
		}
		t.doubts[id] = 0
		t.asking[id] = struct{}{}
		s.wg.Go(func() {
			s.ask(t, id, h.Home)
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(t.asking, id)
		})
	}
}

// ask asks a transaction's home what became of it, and lets its keys go if it is aborted. If it
// is committed the home sees to the rest.
func (s *settler) ask(t *settling, id commit.ID, home uint64) {
	out, err := (*s.d.others.Load()).Settled(t.ctx, home, id)
	if err != nil || out.Rev != 0 || home == s.d.replica.ShardID() {
		return
	}
	if _, err := s.d.Abort(t.ctx, id); err != nil && t.ctx.Err() == nil {
		s.d.log.Warn("a transaction that is aborted still holds keys; it is tried again", slog.Any("error", err))
	}
}
