package shard

import (
	"context"
	"time"
)

// confirmPause is how long a confirmation waits after dragonboat refused a read,
// as it does until the first entry of a term has committed.
const confirmPause = time.Millisecond

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
	r.mu.Unlock()
	_, err := r.confirmations.Get(ctx, struct{}{})
	return err
}

// confirmOnce is one confirmation, for all who share it. Two of them may run side by side:
// calls that come while the first waits for the log's fsync go with the next step of Raft
// instead of the one after.
func (r *Replica) confirmOnce(context.Context, struct{}) (none struct{}, err error) {
	began := time.Now()
	term := r.Serving()
	r.stall("confirm")
	err = r.confirm(term)
	r.stall("confirmed")
	r.observer.Confirmed(time.Since(began), err)
	return none, err
}

// goUntilClosed runs fn, unless the replica is closed.
func (r *Replica) goUntilClosed(fn func(ctx context.Context)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrStopped
	}
	r.wg.Go(func() { fn(r.ctx) })
	return nil
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
		r.stall("read index")
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
