package raft

import (
	"context"
	"slices"
	"time"

	"github.com/lni/dragonboat/v4"
)

// confirmPause is how long a confirmation waits after dragonboat refused a read,
// as it does until the first entry of a term has committed.
const confirmPause = time.Millisecond

// Confirm proves that this replica leads its shard in a term that it serves, at
// some moment between the call and the return: nobody else has acknowledged a
// write that its state does not hold. ErrNotLeader says that it does not.
//
// It is the only caller of dragonboat's ReadIndex, which alone proves nothing: a
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
	since := r.host.since.Load()
	term := r.Serving()
	r.Stall("confirm")
	if err = r.confirm(term); err == nil {
		r.vouch(term, since)
	}
	r.Stall("confirmed")
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

// maxReads bounds the reads of one confirmation that are under way side by side.
const maxReads = 4

// confirm proves leadership in the term with reads that start after the call. A read that
// is not answered soon may have been lost, or be slow: another is begun beside it, and the
// first answer counts. dragonboat leaves reads hanging over a change of leader, which
// ends the confirmation.
func (r *Replica) confirm(term uint64) error {
	var reads reads
	defer reads.release()
	for {
		changed, err := r.during(term)
		if err != nil {
			return err
		}
		if err := reads.begin(r); err != nil {
			r.pause(changed, confirmPause)
			continue
		}
		switch reads.await(changed, r.host.attempt()) {
		case readFailed:
			r.pause(changed, confirmPause)
			continue
		case readPending:
			continue
		case readCompleted:
		}
		r.Stall("read index")
		if leader, now, valid, err := r.nh.GetLeaderID(r.shardID); err != nil || !valid || leader != r.replicaID || now != term {
			return ErrNotLeader
		}
		return nil
	}
}

// during returns why this replica does not serve in a term, and else what is closed when that
// may have changed. 0 is no term.
func (r *Replica) during(term uint64) (changed <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, ErrStopped
	case term == 0 || r.serving != term:
		return nil, ErrNotLeader
	}
	return r.changed, nil
}

// reads are those of one confirmation that are under way.
type reads [maxReads]*dragonboat.RequestState

// begin starts a read, unless there are enough.
func (s *reads) begin(r *Replica) error {
	at := slices.Index(s[:], nil)
	if at < 0 {
		return nil
	}
	rs, err := r.nh.ReadIndex(r.shardID, (maxReads+1)*r.host.attempt())
	s[at] = rs
	return err
}

// What comes of waiting for reads.
const (
	readPending = iota
	readCompleted
	readFailed
)

// await waits until one of the reads has an outcome, or changed is closed, or for a while.
func (s *reads) await(changed <-chan struct{}, within time.Duration) int {
	var outcomes [maxReads]chan dragonboat.RequestResult
	for i, rs := range s {
		if rs != nil {
			outcomes[i] = rs.AppliedC()
		}
	}
	t := time.NewTimer(within)
	defer t.Stop()
	var result dragonboat.RequestResult
	at := 0
	select {
	case <-changed:
		return readPending
	case <-t.C:
		return readPending
	case result = <-outcomes[0]:
	case result = <-outcomes[1]:
		at = 1
	case result = <-outcomes[2]:
		at = 2
	case result = <-outcomes[3]:
		at = 3
	}
	s[at].Release()
	s[at] = nil
	if result.Completed() {
		return readCompleted
	}
	return readFailed
}

// release lets go of the reads that have had their outcome. The others are dragonboat's
// until then.
func (s *reads) release() {
	for _, rs := range s {
		if rs != nil {
			select {
			case <-rs.AppliedC():
				rs.Release()
			default:
			}
		}
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
