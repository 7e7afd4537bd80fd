package shard

import (
	"context"
	"time"
)

// maxRounds bounds the confirmations of one replica that run side by side. A
// second one lets calls that come while the first waits for the log's fsync go
// with the next step of Raft instead of the one after.
const maxRounds = 2

// confirmPause is how long a confirmation waits after dragonboat refused a read,
// as it does until the first entry of a term has committed.
const confirmPause = time.Millisecond

// rounds are the confirmations under way.
type rounds struct {
	// running counts them.
	running int
	// next is the round that callers join until it starts.
	next *round
}

// round is one confirmation and all who share it. They came before it started.
type round struct {
	done chan struct{}
	// err is valid once done is closed.
	err error
}

// Confirm proves that this replica leads its shard in a term that it serves, at
// some moment between the call and the return: nobody else has acknowledged a
// write that its state does not hold. ErrNotLeader says that it does not.
//
// It is the only road to dragonboat's ReadIndex, which alone proves nothing: a
// replica that leads no longer has its read answered by the new leader.
func (r *Replica) Confirm(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.mu.Lock()
	switch {
	case r.closed:
		r.mu.Unlock()
		return ErrStopped
	case r.serving == 0:
		r.mu.Unlock()
		return ErrNotLeader
	}
	if r.rounds.next == nil {
		r.rounds.next = &round{done: make(chan struct{})}
	}
	mine := r.rounds.next
	if r.rounds.running < maxRounds {
		r.rounds.running++
		r.wg.Add(1)
		go r.confirmer()
	}
	r.mu.Unlock()
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// confirmer runs rounds until nobody waits.
func (r *Replica) confirmer() {
	defer r.wg.Done()
	for {
		r.mu.Lock()
		current, term := r.rounds.next, r.serving
		if current == nil {
			r.rounds.running--
			r.mu.Unlock()
			return
		}
		r.rounds.next = nil
		r.mu.Unlock()
		began := time.Now()
		current.err = r.confirm(term)
		r.observer.Confirmed(time.Since(began), current.err)
		close(current.done)
	}
}

// confirm proves leadership in the term with reads that start after the call.
// Attempts are short, since dragonboat leaves reads hanging over a change of
// leader.
func (r *Replica) confirm(term uint64) error {
	for {
		r.mu.Lock()
		serving, closed, changed := r.serving, r.closed, r.changed
		r.mu.Unlock()
		switch {
		case closed:
			return ErrStopped
		case term == 0 || serving != term:
			return ErrNotLeader
		}
		rs, err := r.nh.ReadIndex(r.shardID, r.host.attempt())
		if err != nil {
			r.pause(changed, confirmPause)
			continue
		}
		select {
		case <-changed:
			continue
		case result := <-rs.AppliedC():
			rs.Release()
			if !result.Completed() {
				r.pause(changed, confirmPause)
				continue
			}
		}
		if leader, now, valid, err := r.nh.GetLeaderID(r.shardID); err != nil || !valid || leader != r.replicaID || now != term {
			return ErrNotLeader
		}
		return nil
	}
}

// pause waits for d or until changed is closed.
func (r *Replica) pause(changed <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	}
}
