package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/errgroup"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/shard"
)

// A write over several shards is a transaction that this node coordinates (internal/commit):
//
//  1. All shards that it names hold its keys, side by side; but for the home if that has puts alone.
//  2. What it does is found out on the state that is held, which this node's replicas have.
//  3. Its home commits it, at the number of that command: then it is answered.
//
// The home sees to the rest. What fails before the third step is taken back and made anew, under a
// new id of the same age: of two transactions that meet the younger gives way.

// attempts are the ids of this node.
type attempts struct {
	// boot is drawn from the oracle once, and 0 before.
	boot atomic.Uint64

	mu sync.Mutex
	// last is the newest counter and open are those under way; protected by mu.
	last uint64
	open map[uint64]struct{}
}

// begin returns a new id, and the lowest that is open.
func (a *attempts) begin(node, boot uint64) (id commit.ID, open uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == nil {
		a.open = make(map[uint64]struct{})
	}
	a.last++
	a.open[a.last] = struct{}{}
	open = a.last
	for c := range a.open {
		open = min(open, c)
	}
	return commit.ID{Node: node, Boot: boot, Counter: a.last}, open
}

// end says that nothing more is done under an id.
func (a *attempts) end(id commit.ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, id.Counter)
}

// Coordinates reports whether this node goes on with a transaction.
func (r *Router) Coordinates(id commit.ID) bool {
	a := &r.attempts
	a.mu.Lock()
	defer a.mu.Unlock()
	_, open := a.open[id.Counter]
	return id.Node == r.self && id.Boot == a.boot.Load() && open
}

// bootNumber returns what tells the ids of this process from those of earlier ones.
func (r *Router) bootNumber(ctx context.Context) (uint64, error) {
	boot := &r.attempts.boot
	for boot.Load() == 0 {
		b, err := r.order.Ask(ctx, 1, raft.Leading{})
		if err == nil {
			boot.CompareAndSwap(0, uint64(b.First))
			break
		}
		// It is asked again when there is somebody who answers.
		if _, err := r.newestNumber(ctx); err != nil {
			return 0, err
		}
	}
	return boot.Load(), nil
}

// writesWide reports whether writes over several shards are carried out: all nodes must know
// how.
func (r *Router) writesWide() bool { return r.wideWrites && r.system.State().CommitsWide() }

// PreparesLess reports whether Prepares take no numbers, and homes that are only put to are not prepared: all
// nodes must know that.
func (r *Router) PreparesLess() bool { return r.system.State().PreparesLess() }

// wideTxn runs a transaction over several shards, which names keys to write.
func (r *Router) wideTxn(ctx context.Context, req *pb.TxnRequest, check func(access) error) (*pb.TxnResponse, error) {
	t, err := r.newWide(req)
	if err != nil {
		return nil, err
	}
	checkAll := func(a access) error {
		if err := check(a); err != nil {
			return err
		}
		for _, p := range t.participants {
			if err := r.mayUse(ctx, a, p.d, p.leases...); err != nil {
				return err
			}
		}
		return nil
	}
	if resp, done, err := r.unchangedTxn(ctx, req, checkAll, t.compares); done {
		return resp, err
	}
	if t.access, err = r.access(ctx); err != nil {
		return nil, err
	}
	if err := checkAll(t.access); err != nil {
		return nil, err
	}
	resp, err := carryOut(ctx, &t.coordinated, t.attempt)
	if err != nil {
		return nil, err
	}
	r.noteShown(resp.Header)
	return resp, nil
}

// wideDelete deletes the keys of a range over several shards.
func (r *Router) wideDelete(
	ctx context.Context, req *pb.DeleteRangeRequest, check func(access) error,
) (*pb.DeleteRangeResponse, error) {
	if resp, done, err := r.unchangedDelete(ctx, req, check); done {
		return resp, err
	}
	resp, err := r.wideTxn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{
		{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: req}},
	}}, check)
	if err != nil {
		return nil, err
	}
	deleted := resp.Responses[0].GetResponseDeleteRange()
	deleted.Header = resp.Header
	return deleted, nil
}

// coordinated is what this node goes through with for a transaction over several shards, whatever
// that does.
type coordinated struct {
	r      *Router
	access access
	// participants are the shards of its keys, by id.
	participants []participant
	// home is the one that decides. unprepared says that it has puts alone, which take place whatever
	// is there, so that it need not be prepared.
	home       *shard.Data
	unprepared bool
	// end is the end of a lease that the transaction is, zero for any other.
	end commit.End
	age commit.Age
	// first is the participant that is prepared before the others, nil if none is: an older
	// transaction held keys of it, or it had no leader.
	first *shard.Data
}

// maxLeaderless is for how long a participant may have no leader while others hold keys. Then these
// are given back, and the next attempt waits there before it holds any.
const maxLeaderless = 500 * time.Millisecond

// whileLed returns a context that ends, with raft.ErrTimeout for its cause, when this node has known no
// leader of d for maxLeaderless. It is not looked at before that time has passed.
func whileLed(ctx context.Context, d *shard.Data) (led context.Context, cancel context.CancelFunc) {
	led, end := context.WithCancelCause(ctx)
	watch := time.AfterFunc(maxLeaderless, func() {
		for led.Err() == nil {
			leader, over := d.Replica().LeaderUntil()
			var tooLong <-chan time.Time
			if leader.ReplicaID == 0 {
				tooLong = time.After(maxLeaderless)
			}
			select {
			case <-over.Done():
			case <-tooLong:
				end(raft.ErrTimeout)
			case <-led.Done():
			}
		}
	})
	return led, func() {
		watch.Stop()
		end(nil)
	}
}

// wide is a client's transaction over several shards.
type wide struct {
	coordinated

	req *pb.TxnRequest
	// missed are leases that did not exist when an attempt asked for them.
	missed map[int64]bool
}

// participant is a shard of a transaction, with the keys that it names there.
type participant struct {
	d             *shard.Data
	reads, writes []keys.Span
	leases        []int64
	// puts counts those of the writes that take place, and are answered, whatever is there.
	puts int
}

// newWide sorts what a transaction names by shards.
func (r *Router) newWide(req *pb.TxnRequest) (*wide, error) {
	t := &wide{coordinated: coordinated{r: r}, req: req}
	var failed error
	mvcc.EachSpan(req, func(s keys.Span, write bool) bool {
		if s.Empty() {
			return true
		}
		var parts []part
		if parts, failed = r.parts(s); failed != nil {
			return false
		}
		for _, p := range parts {
			at := t.participant(p.d)
			if write {
				at.writes = append(at.writes, p.span)
			} else {
				at.reads = append(at.reads, p.span)
			}
		}
		return true
	})
	if failed != nil {
		return nil, failed
	}
	mvcc.EachPut(req, func(put *pb.PutRequest) {
		if failed != nil {
			return
		}
		var d *shard.Data
		if d, failed = r.span(keys.Point(put.Key)); failed != nil {
			return
		}
		at := t.participant(d)
		if put.Lease != 0 && !slices.Contains(at.leases, put.Lease) {
			at.leases = append(at.leases, put.Lease)
		}
		if put.Lease == 0 && !put.IgnoreLease && !put.IgnoreValue && !put.PrevKv {
			at.puts++
		}
	})
	if failed != nil {
		return nil, failed
	}
	slices.SortFunc(t.participants, func(a, b participant) int {
		return cmp.Compare(a.d.Replica().ShardID(), b.d.Replica().ShardID())
	})
	t.chooseHome()
	return t, nil
}

// chooseHome makes the first participant the home that may be written, or that need not be prepared if there
// is one.
func (t *wide) chooseHome() {
	for _, p := range t.participants {
		puts := t.r.PreparesLess() && len(p.reads) == 0 && p.puts == len(p.writes)
		if len(p.writes) > 0 && (t.home == nil || puts && !t.unprepared) {
			t.home, t.unprepared = p.d, puts
		}
	}
}

// participant returns that of a shard, a new one if there is none.
func (t *coordinated) participant(d *shard.Data) *participant {
	at := slices.IndexFunc(t.participants, func(p participant) bool { return p.d == d })
	if at < 0 {
		at = len(t.participants)
		t.participants = append(t.participants, participant{d: d})
	}
	return &t.participants[at]
}

// attempt makes one attempt at a transaction, of which open is the lowest that this node has under
// way.
type attempt[T any] func(ctx context.Context, id commit.ID, open uint64) (T, error)

// carryOut runs a transaction, in as many attempts as it takes within the time of two calls: each of
// its two steps in the log takes as long as a write of one shard.
func carryOut[T any](ctx context.Context, t *coordinated, try attempt[T]) (done T, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*t.r.timeout, raft.ErrTimeout)
	defer cancel()
	boot, err := t.r.bootNumber(ctx)
	if err != nil {
		return done, err
	}
	t.age.Rev = t.r.shown.Load()
	once := func() (T, error) {
		id, open := t.r.attempts.begin(t.r.self, boot)
		defer t.r.attempts.end(id)
		if t.age.First == (commit.ID{}) {
			t.age.First = id
		}
		return try(ctx, id, open)
	}
	for {
		done, err = once()
		switch {
		case err == nil:
			return done, nil
		case !errors.Is(err, errAgain):
			return done, t.access.refused(err)
		case ctx.Err() != nil:
			return done, context.Cause(ctx)
		}
	}
}

// errAgain says that an attempt has certainly changed nothing and that another may.
var errAgain = errors.New("the attempt at the transaction came to nothing")

// attempt makes one attempt.
func (t *wide) attempt(ctx context.Context, id commit.ID, open uint64) (*pb.TxnResponse, error) {
	missing, err := t.prepare(ctx, id, open)
	if err != nil {
		return nil, err
	}
	l := t.open()
	defer l.close()
	o, err := l.look(ctx, t.req, missing)
	if errors.Is(err, mvcc.ErrLeaseNotFound) && t.missesMore(missing) || errors.Is(err, mvcc.ErrReplaced) {
		err = errAgain // homes of leases are to be asked after this attempt was turned away for them
	}
	if err != nil {
		t.giveUp(id, false)
		return nil, err
	}
	o.decision.ID = id
	if t.unprepared {
		o.decision.Open = open
	}
	rev, err := t.decide(ctx, &o.decision)
	if err != nil {
		return nil, err
	}
	resp, err := o.answer(rev)
	if err != nil {
		// It has taken place, but what it has seen is gone.
		return nil, fmt.Errorf("%w (%v)", raft.ErrTimeout, err) //nolint:errorlint // the client hears of an unknown outcome
	}
	return resp, nil
}

// missesMore notes leases that don't exist, and reports whether one is new.
func (t *wide) missesMore(missing map[int64]bool) (more bool) {
	if t.missed == nil {
		t.missed = make(map[int64]bool)
	}
	for id := range missing {
		more = more || !t.missed[id]
		t.missed[id] = true
	}
	return more
}

// prepare has all participants hold the transaction's keys, and returns the leases that don't
// exist. After an error the keys are given back.
func (t *coordinated) prepare(ctx context.Context, id commit.ID, open uint64) (missing map[int64]bool, err error) {
	defer func() {
		if err != nil {
			t.giveUp(id, false)
		}
	}()
	missing = make(map[int64]bool)
	var mu sync.Mutex
	prepare := func(ctx context.Context, p *participant, patient bool) error {
		step := &shard.Step{Patient: patient, Prepare: &commit.Prepare{
			ID: id, Age: t.age, Open: open, Home: t.home.Replica().ShardID(),
			Reads: keys.NewSet(p.reads...), Writes: keys.NewSet(p.writes...), Leases: p.leases, End: t.end,
		}}
		result, err := t.take(ctx, p.d, step, t.guard(p.leases...))
		switch {
		case err == nil:
		case errors.Is(err, shard.ErrYounger):
			mu.Lock()
			defer mu.Unlock()
			t.first = p.d
			return errAgain
		case errors.Is(err, shard.ErrAborted), errors.Is(err, raft.ErrTimeout) && ctx.Err() == nil && !patient:
			// Whatever became of it, the transaction can't be committed any more.
			return errAgain
		default:
			return err
		}
		prepared, ok := result.(commit.Prepared)
		if !ok {
			return fmt.Errorf("prepare: the command answered %T", result)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, id := range prepared.Missing {
			missing[id] = true
		}
		return nil
	}
	first := t.first
	t.first = nil
	if first != nil {
		if err := prepare(ctx, t.participant(first), true); err != nil {
			return nil, err
		}
	}
	holding := func(ctx context.Context, p *participant) error {
		led, cancel := whileLed(ctx, p.d)
		defer cancel()
		err := prepare(led, p, false)
		if err == nil || led.Err() == nil || ctx.Err() != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		t.first = p.d
		return errAgain
	}
	g, ctx := errgroup.WithContext(ctx)
	for i := range t.participants {
		if p := &t.participants[i]; p.d != first && (p.d != t.home || !t.unprepared) {
			g.Go(func() error { return holding(ctx, p) })
		}
	}
	return missing, g.Wait()
}

// guard returns what goes with a step that uses leases, nil where nobody's rights matter.
func (t *coordinated) guard(leases ...int64) *shard.Guard {
	if t.end.Decided {
		return nil
	}
	if !t.end.IsZero() {
		leases = append(leases, t.end.Lease.ID)
	}
	return t.access.guard(leases...)
}

// take has a participant take a step.
func (t *coordinated) take(ctx context.Context, d *shard.Data, s *shard.Step, g *shard.Guard) (result any, err error) {
	err = t.r.atLeader(ctx, d, func(ctx context.Context, l Leader) error {
		result, err = l.Take(ctx, g, s)
		return err
	})
	return result, err
}

// open returns a view of the state that is held.
func (t *coordinated) open() *view {
	l := &view{r: t.r, compacted: t.r.system.State().Order.Compacted}
	for _, p := range t.participants {
		v := p.d.Store().View()
		v.Forget(l.compacted)
		l.views = append(l.views, opened{p.d, v})
	}
	return l
}

// decide has the home commit the transaction, and returns its revision. Unless the error is of
// an unknown outcome the transaction certainly does not take place. After an error the keys are given
// back, where it does not.
func (t *coordinated) decide(ctx context.Context, d *commit.Decision) (rev int64, err error) {
	defer func() {
		if err != nil {
			t.giveUp(d.ID, true)
		}
	}()
	result, err := t.take(ctx, t.home, &shard.Step{Decision: d}, t.guard())
	switch {
	case errors.Is(err, shard.ErrYounger):
		t.unprepared, t.first = false, t.home
		return 0, errAgain
	case errors.Is(err, shard.ErrAborted):
		return 0, errAgain
	case err != nil:
		return 0, err
	}
	o, ok := result.(commit.Outcome)
	if !ok {
		return 0, fmt.Errorf("decide: the command answered %T", result)
	}
	return o.Rev, nil
}

// giveUp has the participants let the keys go, in the background: what it does not reach asks
// the home in time. Where the home may have decided it is asked first.
func (t *coordinated) giveUp(id commit.ID, perhapsDecided bool) {
	participants := slices.Clone(t.participants)
	home := t.home
	_ = t.r.running.run(func(ctx context.Context) {
		ctx, cancel := t.r.bounded(ctx)
		defer cancel()
		abort := func(d *shard.Data) (out commit.Outcome, err error) {
			err = t.r.atLeader(ctx, d, func(ctx context.Context, l Leader) error {
				out, err = l.Abort(ctx, id)
				return err
			})
			return out, err
		}
		if perhapsDecided {
			if out, err := abort(home); err != nil || out.Rev != 0 {
				return
			}
		}
		var wg sync.WaitGroup
		defer wg.Wait()
		for _, p := range participants {
			if p.d != home || !perhapsDecided {
				wg.Go(func() { _, _ = abort(p.d) })
			}
		}
	})
}

// Finish has a shard make the changes of transactions that are committed.
func (r *Router) Finish(ctx context.Context, shardID uint64, list []commit.Finish) error {
	d := r.shards[shardID]
	if d == nil {
		return errUnplaced
	}
	return r.atLeader(ctx, d, func(ctx context.Context, l Leader) error { return l.Finish(ctx, list) })
}

// Settled asks a transaction's home what became of it.
func (r *Router) Settled(ctx context.Context, home uint64, id commit.ID) (out commit.Outcome, err error) {
	d := r.shards[home]
	if d == nil {
		return out, errUnplaced
	}
	err = r.atLeader(ctx, d, func(ctx context.Context, l Leader) error {
		out, err = l.Settled(ctx, id)
		return err
	})
	return out, err
}

// Open reports whether the node that coordinates a transaction says that it still does.
func (r *Router) Open(ctx context.Context, id commit.ID) bool {
	if id.Node == r.self {
		return r.Coordinates(id)
	}
	return r.leaders != nil && r.leaders.Open(ctx, id)
}
