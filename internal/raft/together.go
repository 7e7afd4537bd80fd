package raft

import (
	"context"
	"slices"
	"sync"
)

// PromiseEach promises all keys up to rev of shards whose replicas share a host and an oracle,
// as PromiseAll does, and tells answer of each once, as soon as it is known. It returns when
// all have been answered; answer may be called by several goroutines. The shards must be
// ordered. What is begun goes on when ctx ends: others may have joined it.
//
// One question to the oracle proves all leaderships that can be, in place of a read of Raft
// in each shard. A promise only rests on that nobody but this leader was, or will be, given
// numbers up to rev. The oracle has noted who was, since some time; what Raft proved to be the
// newest term after that has no successor that the oracle has not heard of. The order of the
// steps is that of Promise, with the oracle's answer as its step 4:
//
//   - An earlier term's entries are all applied here.
//   - A later term was given a number up to rev either before that time, and then it was
//     elected before Raft's proof, which would have failed; or after it, and then the oracle
//     noted the term before the number, so before rev was issued, so before the question.
//   - Or it will be given numbers later: they are above rev.
func PromiseEach(ctx context.Context, rev int64, replicas []*Replica, answer func(r *Replica, index uint64, err error)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	alone := func(r *Replica) {
		wg.Go(func() {
			index, err := r.PromiseAll(ctx, rev)
			answer(r, index, err)
		})
	}
	var begun []*claimed
	for _, r := range replicas {
		index, flying, promised := r.resolving.find(rev)
		if promised {
			answer(r, index, nil)
			continue
		}
		if flying == nil {
			if c := r.claim(rev); c != nil {
				begun = append(begun, c)
				continue
			}
		}
		alone(r)
	}
	if len(begun) == 0 {
		return
	}
	select {
	case <-finishLater(begun):
	case <-ctx.Done():
	}
	for _, c := range begun {
		if index, _, promised := c.r.resolving.find(rev); promised {
			answer(c.r, index, nil)
			continue
		}
		alone(c.r)
	}
}

// claimed is a promise of all keys that waits for the oracle's proof.
type claimed struct {
	*Promised

	claim   Claim
	attempt *resolution
}

// claim begins a promise up to rev. A shard that waits for numbers, which a promise waits for,
// and one that may not lead, returns nil.
func (r *Replica) claim(rev int64) *claimed {
	r.mu.Lock()
	defer r.mu.Unlock()
	asks := slices.ContainsFunc(r.asks, func(a *ask) bool { return !a.ok })
	if r.closed || r.serving == 0 || r.oracle == nil || asks {
		return nil
	}
	r.promised = max(r.promised, rev)
	c := &claimed{
		Promised: &Promised{r: r, rev: rev, jumps: r.jumps},
		claim:    Claim{Leading: Leading{r.shardID, r.serving}}, attempt: r.resolving.begin(rev),
	}
	if r.vouched.Term == r.serving {
		c.claim.Since = r.vouched.Since
	}
	return c
}

// finishLater has the attempts of claims finish, whether or not the caller waits, at the latest
// when their replicas are closed. What it returns is closed when those have ended that wait for
// no command.
func finishLater(begun []*claimed) <-chan struct{} {
	looked := make(chan struct{})
	err := begun[0].r.goUntilClosed(func(ctx context.Context) {
		defer close(looked)
		finish(ctx, begun)
	})
	if err != nil {
		for _, c := range begun {
			c.r.resolve(c.attempt, 0, err)
		}
		close(looked)
	}
	return looked
}

// finish has the oracle prove claims, and ends the attempts of them. One that has to wait for
// commands does so as long as its own replica is there.
func finish(ctx context.Context, begun []*claimed) {
	proved := prove(ctx, begun)
	for i, c := range begun {
		if !proved[i] {
			c.r.resolve(c.attempt, 0, ErrNotLeader)
			continue
		}
		index, gone, err := c.look(nil)
		if gone == nil {
			c.r.resolve(c.attempt, index, err)
			continue
		}
		err = c.r.goUntilClosed(func(ctx context.Context) {
			index, err := c.Of(ctx, nil)
			c.r.resolve(c.attempt, index, err)
		})
		if err != nil {
			c.r.resolve(c.attempt, 0, err)
		}
	}
}

// prove asks the oracle, and reports which claims it has proved. Where it does not answer
// that is none.
func prove(ctx context.Context, begun []*claimed) []bool {
	r := begun[0].r
	ctx, cancel := context.WithTimeout(ctx, r.host.askTimeout())
	defer cancel()
	claims := make([]Claim, len(begun))
	for i, c := range begun {
		claims[i] = c.claim
	}
	r.Stall("claim")
	since, proved, err := r.oracle.Prove(ctx, claims)
	r.Stall("claimed")
	if err != nil || len(proved) != len(claims) {
		return make([]bool, len(claims))
	}
	r.host.since.Store(&since)
	return proved
}

// vouch notes that Raft proved the leadership of a term in a confirmation that began at or
// after a time of the oracle, nil for none.
func (r *Replica) vouch(term uint64, since *Since) {
	if since == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.vouched = Claim{Leading{r.shardID, term}, *since}
}
