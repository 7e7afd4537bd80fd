package raft

import (
	"context"
	"slices"
	"sync"

	"github.com/latchkey-db/latchkey/internal/share"
)

// resolving is what a leader promises of all its keys. Such a promise is a fact that holds
// for ever: whoever asks for a revision that was promised, or is being promised, need not
// have it proved again.
type resolving struct {
	share share.Share[int64, uint64]

	mu sync.Mutex
	// flying are the attempts under way; protected by mu.
	flying []*resolution
	// rev and index are what was promised last: a replica that has applied the entry at
	// index holds all changes up to rev. Protected by mu.
	//
	// Invariant: both come from one Promise. The revision that the machine was told of does
	// not go with the index that has been applied: it is published first.
	rev   int64
	index uint64
}

// resolution is one attempt to promise all keys up to a revision.
type resolution struct {
	rev  int64
	done chan struct{}
	// index and err are valid once done is closed.
	index uint64
	err   error
}

// PromiseAll promises all keys up to rev, as Promise does, and tells ReplicaConfig.Resolved.
// Who asks meanwhile for no more than is being promised shares the promise, and what has
// been promised once needs no proof.
func (r *Replica) PromiseAll(ctx context.Context, rev int64) (index uint64, err error) {
	index, flying, promised := r.resolving.find(rev)
	if promised {
		return index, nil
	}
	if flying != nil {
		select {
		case <-flying.done:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		if flying.err == nil {
			return flying.index, nil
		}
	}
	return r.resolving.share.Get(ctx, rev)
}

// find returns the index that goes with a promise that does for rev, or an attempt under
// way that will, or neither.
func (s *resolving) find(rev int64) (index uint64, flying *resolution, promised bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rev >= rev {
		return s.index, nil, true
	}
	for _, a := range s.flying {
		if a.rev >= rev {
			return 0, a, false
		}
	}
	return 0, nil, false
}

// resolveOnce is one attempt, unless it is not needed any more.
func (r *Replica) resolveOnce(ctx context.Context, rev int64) (uint64, error) {
	if index, _, promised := r.resolving.find(rev); promised {
		return index, nil
	}
	a := r.resolving.begin(rev)
	index, err := r.Promise(ctx, rev, nil)
	r.resolve(a, index, err)
	return index, err
}

// begin begins an attempt up to rev.
func (s *resolving) begin(rev int64) *resolution {
	a := &resolution{rev: rev, done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flying = append(s.flying, a)
	return a
}

// resolve ends an attempt. A promise that came of it is kept, and told of.
func (r *Replica) resolve(a *resolution, index uint64, err error) {
	if err == nil && r.resolved != nil {
		r.resolved(a.rev)
	}
	s := &r.resolving
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && a.rev > s.rev {
		s.rev, s.index = a.rev, index
	}
	s.flying = slices.DeleteFunc(s.flying, func(b *resolution) bool { return a == b })
	a.index, a.err = index, err
	close(a.done)
}
