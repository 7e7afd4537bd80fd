package raft

import (
	"context"
	"slices"
	"sync"
)

// PromiseEach promises all keys up to rev of shards whose replicas share a host and an oracle,
// as PromiseAll does, and tells answer of each once, as soon as it is known. It returns when
// all have been answered; answer may be called by several goroutines. The shards must be
// ordered.
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
	proved := prove(ctx, begun)
	for i, c := range begun {
		if !proved[i] {
			c.r.resolve(c.attempt, 0, ErrNotLeader)
			alone(c.r)
			continue
		}
		finish := func(index uint64, err error) {
			c.r.resolve(c.attempt, index, err)
			answer(c.r, index, err)
		}
		index, gone, err := c.look(nil)
		if gone == nil {
			finish(index, err)
			continue
		}
		wg.Go(func() { finish(c.Of(ctx, nil)) })
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
