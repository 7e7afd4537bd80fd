package raft

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	raftpb "github.com/lni/dragonboat/v4/raftpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// counter is an oracle that always leads.
type counter struct {
	mu   sync.Mutex
	last int64
}

func (o *counter) Ask(_ context.Context, count int, _ Leading) (Block, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := Block{First: o.last + 1, Newest: o.last + int64(count), Compacted: -1}
	o.last = b.Newest
	return b, nil
}

// Prove proves nothing.
func (*counter) Prove(_ context.Context, claims []Claim) (Since, []bool, error) {
	return Since{}, make([]bool, len(claims)), nil
}

// newOrderedCluster returns a cluster whose commands have numbers.
func newOrderedCluster(tb testing.TB, n uint64) *cluster {
	tb.Helper()
	return makeCluster(tb, n, cluster{oracle: &counter{last: 1}})
}

// addOnce adds to a cell with a command that has a number and writes the key of that name.
func (nd *testNode) addOnce(cell string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := nd.r.Submit(ctx, Proposal{
		Kind: kindAdd, Payload: []byte(cell), Numbers: 1, Writes: Writes{Spans: []keys.Span{keys.Point([]byte(cell))}},
	})
	return err
}

// Between a successor's election and its begin entry the deposed leader's numbered
// entries still count; one that the network delivers twice must apply once.
func TestDuplicatedNumberedProposalAppliesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOrderedCluster(t, 3)
		defer c.close()
		a, term := c.leader(0)
		if err := a.addOnce("x"); err != nil {
			t.Fatal(err)
		}
		hear := deafen(a)
		b := c.other(a)
		hearB := deafen(b)
		var doubled atomic.Uint64
		c.net.setRepeat(func(_, _ string, m *raftpb.Message) bool {
			if m.Type == raftpb.Propose {
				doubled.Add(1)
			}
			return m.Type == raftpb.Propose
		})
		c.handOver(b)
		for range 10 {
			if err := a.addOnce("x"); err != nil {
				t.Fatal(err)
			}
		}
		hear()
		hearB()
		c.leaderAmong(term, c.nodes...)
		nd, _ := c.leader(term)
		if err := nd.addOnce("x"); err != nil {
			t.Fatal(err)
		}
		if got := nd.m.get("x"); got != 12 {
			t.Errorf("added 12 times, and applied %d times", got)
		}
		if doubled.Load() == 0 {
			t.Fatal("no proposal was forwarded; the run shows nothing")
		}
	})
}

// A promise waits for a command when its replica's state is replaced by a snapshot. Whether
// the command is in there nobody knows here: the promise fails, whatever index the state
// is at.
func TestPromiseFailsWhenTheStateJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOrderedCluster(t, 3)
		defer c.close()
		a, term := c.leader(0)
		if err := a.addOnce("x"); err != nil {
			t.Fatal(err)
		}
		// The followers have the command, and the leader does not hear of it.
		c.net.setDrop(func(_, to string, m *raftpb.Message) bool {
			return to == c.addr(a.id) && m.Type == raftpb.ReplicateResp
		})
		added := make(chan error, 1)
		go func() {
			err := a.addOnce("x")
			added <- err
		}()
		time.Sleep(5 * time.Millisecond)
		promised := make(chan error, 1)
		go func() {
			_, err := a.r.Promise(context.Background(), 100, []keys.Span{keys.Point([]byte("x"))})
			promised <- err
		}()
		time.Sleep(5 * time.Millisecond)
		c.net.isolate(c.addr(a.id))
		b, _ := c.leader(term)
		for range 50 {
			if err := b.addOnce("y"); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := b.host.snapshot(ctx, 1); err != nil {
			t.Fatal(err)
		}
		if err := b.addOnce("y"); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-promised:
			t.Fatalf("promised before the state jumped: %v", err)
		default:
		}
		c.net.heal()
		if err := <-added; !errors.Is(err, ErrTimeout) {
			t.Errorf("command: %v, want the unknown outcome", err)
		}
		if err := <-promised; !errors.Is(err, ErrNotLeader) {
			t.Errorf("promise: %v, want no promise", err)
		}
	})
}

// stuck is an oracle that from some time on does not answer.
type stuck struct {
	counter

	stands atomic.Bool
}

func (o *stuck) Ask(ctx context.Context, count int, by Leading) (Block, error) {
	if o.stands.Load() {
		<-ctx.Done()
		return Block{}, context.Cause(ctx)
	}
	return o.counter.Ask(ctx, count, by)
}

// A promise that waits for numbers which were asked for before ends with the leadership, and
// not when the oracle's time is over.
func TestPromiseEndsWithTheLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oracle := &stuck{counter: counter{last: 1}}
		c := makeCluster(t, 3, cluster{oracle: oracle})
		defer c.close()
		a, _ := c.leader(0)
		if err := a.addOnce("x"); err != nil {
			t.Fatal(err)
		}
		oracle.stands.Store(true)
		added := make(chan error, 1)
		go func() { added <- a.addOnce("x") }()
		time.Sleep(5 * time.Millisecond)
		promised := make(chan error, 1)
		go func() {
			_, err := a.r.Promise(t.Context(), 100, nil)
			promised <- err
		}()
		time.Sleep(5 * time.Millisecond)
		if a.r.Serving() == 0 {
			t.Fatal("the leadership was lost too early; the run shows nothing")
		}
		c.handOver(c.other(a))
		for a.r.Serving() != 0 {
			time.Sleep(time.Millisecond)
		}
		lost := time.Now()
		if err := <-promised; !errors.Is(err, ErrNotLeader) || time.Since(lost) > 10*time.Millisecond {
			t.Errorf("%v after the end: %v", time.Since(lost), err)
		}
		oracle.stands.Store(false)
		<-added
	})
}
