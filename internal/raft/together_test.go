package raft

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// witness is an oracle that proves every claim, and may be held up.
type witness struct {
	counter

	// asked hears of each question for numbers that has them, whose answer then waits for
	// answer to be closed. Both nil where none waits.
	asked, answer chan struct{}
	// claimed hears of each claim, which then waits for prove to be closed.
	claimed, prove chan struct{}
}

func newWitness() *witness {
	return &witness{counter: counter{last: 1}, claimed: make(chan struct{}, 1), prove: make(chan struct{})}
}

func (o *witness) Ask(ctx context.Context, count int, by Leading) (Block, error) {
	b, err := o.counter.Ask(ctx, count, by)
	if o.asked != nil {
		select {
		case o.asked <- struct{}{}:
		default: // heard of before
		}
		<-o.answer
	}
	return b, err
}

func (o *witness) Prove(ctx context.Context, claims []Claim) (since Since, proved []bool, err error) {
	o.claimed <- struct{}{}
	select {
	case <-o.prove:
	case <-ctx.Done():
		return since, nil, context.Cause(ctx)
	}
	for range claims {
		proved = append(proved, true)
	}
	return since, proved, nil
}

// promiseTogether promises all keys as PromiseEach does.
func (nd *testNode) promiseTogether(ctx context.Context, rev int64) (index uint64, err error) {
	PromiseEach(ctx, rev, []*Replica{nd.r}, func(_ *Replica, at uint64, failed error) { index, err = at, failed })
	return index, err
}

// A command asks for numbers after a claim, and hears of them when the promise has been made.
// It uses none up to the revision that was promised, even of an oracle that hands out, against
// its contract, what is below a revision that is known.
func TestClaimHoldsNumbersBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oracle := newWitness()
		oracle.asked, oracle.answer = make(chan struct{}, 1), make(chan struct{})
		c := makeCluster(t, 1, cluster{oracle: oracle})
		defer c.close()
		nd, _ := c.leader(0)
		const rev = 10
		promised := make(chan error, 1)
		go func() {
			_, err := nd.promiseTogether(t.Context(), rev)
			promised <- err
		}()
		<-oracle.claimed
		added := make(chan error, 1)
		go func() { added <- nd.addOnce("x") }()
		<-oracle.asked
		close(oracle.prove)
		if err := <-promised; err != nil {
			t.Error(err)
		}
		close(oracle.answer)
		if err := <-added; err != nil {
			t.Error(err)
		}
		nd.r.mu.Lock()
		defer nd.r.mu.Unlock()
		if nd.r.used <= rev {
			t.Errorf("number %d was used after %d was promised", nd.r.used, int64(rev))
		}
	})
}

// Who began a promise gives up. Who joined it waits on, and need not begin another; the end
// of the host ends it.
func TestClaimOutlivesItsCaller(t *testing.T) {
	for _, closed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			oracle := newWitness()
			c := makeCluster(t, 1, cluster{oracle: oracle})
			defer c.close()
			nd, _ := c.leader(0)
			ctx, cancel := context.WithCancel(t.Context())
			began, joined := make(chan error, 1), make(chan error, 1)
			go func() {
				_, err := nd.promiseTogether(ctx, 10)
				began <- err
			}()
			<-oracle.claimed
			go func() {
				_, err := nd.r.PromiseAll(t.Context(), 10)
				joined <- err
			}()
			synctest.Wait()
			cancel()
			if err := <-began; err == nil {
				t.Error("promised to one who has given up")
			}
			time.Sleep(nd.host.askTimeout() / 2)
			select {
			case err := <-joined:
				t.Fatalf("another promise was begun: %v", err)
			default:
			}
			if closed {
				c.stop(nd)
			} else {
				close(oracle.prove)
			}
			if err := <-joined; closed == (err == nil) {
				t.Errorf("closed %v: %v", closed, err)
			}
		})
	}
}
