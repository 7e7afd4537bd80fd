package fence

import (
	"context"
	"sync"
)

// Guard remembers the highest token of each resource, in memory: a process that starts anew
// takes any token at first. What has to be safe over restarts keeps the token beside the
// data, as package fencesql does. It keeps a few dozen bytes for each resource for ever. The zero Guard
// is ready for use, and all methods may run side by side.
type Guard struct {
	mu sync.Mutex
	// resources by name, protected by mu.
	resources map[string]*resource
}

// resource is what a Guard knows of one. All of it is protected by the Guard's mu.
type resource struct {
	newest Token
	// inside counts what has entered with newest, older what has with lower tokens. Each
	// comes to an end by itself.
	inside, older int
	// drained is closed when older becomes 0; nil while nobody waits.
	drained chan struct{}
}

// Check refuses a token that is lower than one seen for the resource, with a *StaleError,
// and remembers it otherwise; an equal one passes. Errors are that and ErrInvalid. It is for
// resources that put what they are asked in an order themselves, behind the check: a caller that
// was let in may otherwise still be at work when a higher token comes. Enter waits for that.
func (g *Guard) Check(name string, t Token) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err := g.raiseLocked(name, t)
	return err
}

// Enter refuses a token as Check does, and returns when nobody with a lower one is at work
// any more. The caller may then work until it calls leave; others with the same token may
// do so beside it. Where ctx ends first its error is returned, and the token is remembered
// all the same.
func (g *Guard) Enter(ctx context.Context, name string, t Token) (leave func(), err error) {
	for {
		r, wait, err := g.tryEnter(name, t)
		switch {
		case err != nil:
			return nil, err
		case wait == nil:
			return sync.OnceFunc(func() { g.leave(r, t) }), nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// tryEnter lets a caller in, or returns what is closed when those with lower tokens have
// left.
func (g *Guard) tryEnter(name string, t Token) (r *resource, wait <-chan struct{}, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r, err = g.raiseLocked(name, t); err != nil {
		return nil, nil, err
	}
	if r.older == 0 {
		r.inside++
		return r, nil, nil
	}
	if r.drained == nil {
		r.drained = make(chan struct{})
	}
	return r, r.drained, nil
}

// raiseLocked takes note of a token. g.mu must be held.
func (g *Guard) raiseLocked(name string, t Token) (*resource, error) {
	if err := t.Valid(); err != nil {
		return nil, err
	}
	r := g.resources[name]
	switch {
	case r == nil:
		r = &resource{newest: t}
		if g.resources == nil {
			g.resources = make(map[string]*resource)
		}
		g.resources[name] = r
	case t < r.newest:
		return nil, &StaleError{Resource: name, Token: t, Newest: r.newest}
	case t > r.newest:
		r.newest, r.older, r.inside = t, r.older+r.inside, 0
	}
	return r, nil
}

// leave lets go of a resource that was entered with a token.
func (g *Guard) leave(r *resource, t Token) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.newest == t {
		r.inside--
		return
	}
	if r.older--; r.older == 0 && r.drained != nil {
		close(r.drained)
		r.drained = nil
	}
}
