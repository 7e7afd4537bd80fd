package system

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/latchkey-db/latchkey/internal/raft"
)

// The oracle is the leader of the system shard: a counter in memory, below a limit
// that is raised through the log. A new leader starts at the limit, so that what an
// earlier one handed out stays below whatever it hands out. One that hands over lowers the
// limit to what it has handed out before (release.go), so that nothing is left out.
//
//	allotted after the question arrived  ->  leadership proved in the same term  ->  answered
//
// The order is what makes numbers follow real time: nobody else can have handed out
// a higher number before the question came.

// The step is by how much more than needed the limit is raised, and so how many numbers a
// leader that is lost leaves out at the most. It doubles each time the limit is raised and
// shrinks by an eighth each tick, to about what is handed out in a second: so the limit is
// raised about once a second where many numbers are handed out, and once for each minStep
// where few are.
const (
	minStep = 500
	maxStep = 100_000
)

// OrderRecord is the cluster's one order of revisions.
type OrderRecord struct {
	// Begun says that there is one: numbers are handed out.
	Begun bool `json:"begun"`
	// Limit bounds the numbers that were handed out.
	Limit int64 `json:"limit"`
	// Base is the revision up to which there was an order before: every number is
	// above it.
	Base int64 `json:"base"`
	// Compacted is the compaction revision, -1 before the first compaction.
	Compacted int64 `json:"compacted"`
}

// counter is what the oracle keeps in memory while it leads.
type counter struct {
	machine *Machine

	mu sync.Mutex
	// term is the one served, 0 while this node does not lead; protected by mu.
	term uint64
	// begun is the newest term that was ever served; protected by mu.
	begun uint64
	// last is the highest number handed out in the term or before; protected by mu.
	//
	// Invariant: last <= the limit in the state that this node has applied.
	last int64
	// held says that no numbers are handed out in begun, since the leadership is about to go;
	// lowering that an entry of begun is under way that lowers the limit to last, or that its
	// outcome is open. Protected by mu.
	held, lowering bool
	// step is by how much more than needed the limit is raised; protected by mu.
	//
	// Invariant: minStep <= step <= maxStep.
	step int64
	// ahead is the limit that has been proposed before it is needed, 0 for none in the term;
	// protected by mu.
	ahead int64
	// given holds, by shard, the newest term that asked for numbers in begun, and unnamed
	// counts the requests that named none; protected by mu.
	//
	// Invariant: a term is in given, or its request counted, no later than it has numbers.
	given   map[uint64]uint64
	unnamed uint64
}

var _ raft.Leadership = (*counter)(nil)

// Began starts at the limit that all earlier leaders obeyed. Of a term that was served before
// it is known how far it came, and the limit may be about to be lowered to that.
func (c *counter) Began(term uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.term = term
	if term == c.begun {
		return
	}
	c.begun, c.last = term, c.machine.State().Order.Limit
	c.step, c.ahead = minStep, 0
	c.held, c.lowering = false, false
	c.given, c.unnamed = make(map[uint64]uint64), 0
}

// Ended forgets the term.
func (c *counter) Ended() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.term = 0
}

// Tick has the limit be raised in smaller steps.
func (c *counter) Tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step = max(minStep, c.step-c.step/8)
}

// allot hands out n numbers. Where the limit is too low it returns the one that is
// needed instead.
func (c *counter) allot(n int64, by raft.Leading) (b raft.Block, term uint64, limit int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	order := c.machine.State().Order
	switch {
	case c.term == 0:
		return b, 0, 0, raft.ErrNotLeader
	case !order.Begun:
		return b, 0, 0, errNoOrder
	case n > 0 && (c.held || c.lowering):
		return b, 0, 0, raft.ErrNotLeader
	}
	c.last = max(c.last, order.Base)
	if c.last+n > order.Limit {
		return b, 0, c.last + n + c.step, nil
	}
	switch {
	case n == 0:
	case by == raft.Leading{}:
		c.unnamed++
	default:
		c.given[by.ShardID] = max(c.given[by.ShardID], by.Term)
	}
	b = raft.Block{First: c.last + 1, Newest: c.last + n, Compacted: order.Compacted}
	c.last += n
	return b, c.term, 0, nil
}

// newest says of which claims no later term has been given numbers in the term served, of
// those whose time lies in it.
func (c *counter) newest(claims []raft.Claim) (since raft.Since, proved []bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.term == 0 {
		return since, nil, raft.ErrNotLeader
	}
	since = raft.Since{Term: c.term, Unnamed: c.unnamed}
	proved = make([]bool, len(claims))
	for i, claim := range claims {
		proved[i] = claim.Since == since && claim.Term >= c.given[claim.ShardID]
	}
	return since, proved, nil
}

// next returns the limit to be proposed before it is needed, 0 where the one that was
// proposed last will do.
func (c *counter) next() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	limit := max(c.machine.State().Order.Limit, c.ahead)
	if c.term == 0 || c.held || c.lowering || limit-c.last > c.step/2 {
		return 0
	}
	c.step = min(2*c.step, maxStep)
	c.ahead = limit + c.step
	return c.ahead
}

// serves reports whether the term is the one served.
func (c *counter) serves(term uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.term == term
}

// errNoOrder is returned while the cluster's one shard counts by itself.
var errNoOrder = fmt.Errorf("%w: the cluster has no order of revisions", raft.ErrNotApplied)

var _ raft.Oracle = (*Cluster)(nil)

// Ask asks the oracle once, on whichever node it is. See raft.Oracle.
func (c *Cluster) Ask(ctx context.Context, count int, by raft.Leading) (raft.Block, error) {
	l, ok := c.caller().Leader()
	if !ok {
		return raft.Block{}, raft.ErrNotLeader
	}
	return l.Ask(ctx, count, by, c.voted())
}

// Prove asks the oracle once, on whichever node it is. See raft.Oracle.
func (c *Cluster) Prove(ctx context.Context, claims []raft.Claim) (since raft.Since, proved []bool, err error) {
	l, ok := c.caller().Leader()
	if !ok {
		return since, nil, raft.ErrNotLeader
	}
	return l.Prove(ctx, claims)
}

// proveHere asks the oracle, which must be this node, once. As with numbers the answer is
// found, and then proved to be that of the oracle.
func (c *Cluster) proveHere(ctx context.Context, claims []raft.Claim) (since raft.Since, proved []bool, err error) {
	if since, proved, err = c.counter.newest(claims); err != nil {
		return since, nil, err
	}
	if err := c.replica.Confirm(ctx); err != nil {
		return since, nil, err
	}
	if !c.counter.serves(since.Term) {
		return since, nil, raft.ErrNotLeader
	}
	return since, proved, nil
}

// voted returns what a question to the oracle says of this node's replica, nothing while not all nodes understand that.
func (c *Cluster) voted() raft.Voted {
	if !c.State().allows(asksWithVote) {
		return raft.Voted{}
	}
	return c.replica.Voted()
}

// askHere asks the oracle, which must be this node, once.
func (c *Cluster) askHere(ctx context.Context, count int, by raft.Leading, voted raft.Voted) (raft.Block, error) {
	for {
		b, term, limit, err := c.counter.allot(int64(count), by)
		if err != nil {
			return b, err
		}
		if limit != 0 {
			if err := c.raise(ctx, limit); err != nil {
				return b, err
			}
			continue
		}
		c.raiseAhead()
		if err := c.replica.ConfirmFor(ctx, voted); err != nil {
			return b, err
		}
		if !c.counter.serves(term) {
			return b, raft.ErrNotLeader
		}
		return b, nil
	}
}

// IsOracle reports whether this node is the oracle, as far as it knows.
func (c *Cluster) IsOracle() bool { return c.replica.Serving() != 0 }

// Newest asks the oracle for the newest number, again while it can't be reached.
func (c *Cluster) Newest(ctx context.Context) (b raft.Block, err error) {
	err = c.caller().Again(ctx, func(ctx context.Context, l Leader) error {
		b, err = l.Ask(ctx, 0, raft.Leading{}, c.voted())
		return err
	})
	return b, err
}

// raiseAhead has the limit be raised before it is reached, so that nobody waits for that.
// Where nothing comes of it, who reaches the limit raises it.
func (c *Cluster) raiseAhead() {
	limit := c.counter.next()
	if limit == 0 {
		return
	}
	payload, err := encode(limitCommand{Limit: limit})
	if err != nil {
		return
	}
	_ = c.replica.SubmitLater(raft.Proposal{Kind: raft.Kind(kindLimit), Payload: payload}, nil, func(any, error) {})
}

// raise raises the limit, unless it is as high already. One entry serves all who
// need a higher one at the same time.
func (c *Cluster) raise(ctx context.Context, limit int64) error {
	select {
	case c.raising <- struct{}{}:
		defer func() { <-c.raising }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if c.State().Order.Limit >= limit || c.counter.holds() {
		return nil // who asked finds out
	}
	payload, err := encode(limitCommand{Limit: limit})
	if err != nil {
		return err
	}
	_, err = c.replica.Propose(ctx, raft.Kind(kindLimit), payload)
	return err
}

// ErrTooOld is what a compaction hears that is not above the last.
var ErrTooOld = errors.New("system: the revision has been compacted already")

// Compact makes rev the compaction revision and reports whether it was above the
// last one. The caller has seen to it that rev was handed out.
func (c *Cluster) Compact(ctx context.Context, rev int64) (bool, error) {
	_, err := c.propose(ctx, kindCompact, compactCommand{Rev: rev})
	if errors.Is(err, ErrTooOld) {
		return false, nil
	}
	return err == nil, err
}

// Compacted returns the compaction revision that this node knows, -1 before the
// first compaction, and what is closed when it may have changed.
func (c *Cluster) Compacted() (rev int64, changed <-chan struct{}) {
	changed = *c.machine.changed.Load()
	return c.State().Order.Compacted, changed
}

// BeginOrder makes numbers be handed out, above the revision of the one shard that counted
// by itself before; compacted is its compaction revision, -1 before the first. Repeated, it
// does nothing.
func (c *Cluster) BeginOrder(ctx context.Context, rev, compacted int64) error {
	_, err := c.propose(ctx, kindOrder, OrderRecord{Begun: true, Limit: rev, Base: rev, Compacted: compacted})
	return err
}

// limitCommand raises the oracle's limit, or lowers it.
type limitCommand struct {
	Limit int64 `json:"limit"`
}

// compactCommand raises the compaction revision.
type compactCommand struct {
	Rev int64 `json:"rev"`
}

// limit raises the oracle's limit.
func (r *run) limit(p limitCommand) {
	if p.Limit > r.current().Order.Limit {
		s := r.change()
		s.Order.Limit = p.Limit
		r.out.set(orderKey(), s.Order)
	}
}

// compact raises the compaction revision, or says that it is as high already.
func (r *run) compact(p compactCommand) error {
	if p.Rev <= r.current().Order.Compacted {
		return ErrTooOld
	}
	s := r.change()
	s.Order.Compacted = p.Rev
	r.out.set(orderKey(), s.Order)
	return nil
}

// order begins the order of revisions, once.
func (r *run) order(p OrderRecord) {
	if r.current().Order.Begun {
		return
	}
	s := r.change()
	s.Order = p
	r.out.set(orderKey(), s.Order)
}
