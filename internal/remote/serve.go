package remote

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/lock/deadlock"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/shard"
	"github.com/latchkey-db/latchkey/system"
)

// Server answers the calls of other nodes for the shards of this one.
type Server struct {
	// System is this node's replica of the system shard; nil until there is one.
	System system.Leader
	// SystemLog is the Raft side of that replica; nil until there is one.
	SystemLog *raft.Replica
	// Shards are this node's replicas of the data shards by id.
	Shards map[uint64]*shard.Data
	// Unfit, if not nil, reports that the node takes over no leadership: it is about to stop
	// or can't write.
	Unfit func() bool
	// Missed, if not nil, reports whether this node misses another.
	Missed func(node uint64) bool
	// Waits tells what clients wait for here; nil until clients are served.
	Waits func(clients []string) []deadlock.Wait
	// Open, if not nil, reports whether this node coordinates a transaction.
	Open func(id commit.ID) bool
}

// Handle answers one call.
func (s *Server) Handle(ctx context.Context, request []byte) (answer []byte) {
	if len(request) == 0 {
		return failedAnswer(errMalformed)
	}
	r := reader{rest: request[1:]}
	serve := s.data
	switch {
	case request[0] == methodApplied:
		serve = s.applied
	case request[0] == methodMissed:
		serve = s.missed
	case request[0] == methodOpen:
		serve = s.open
	case request[0] == methodPromises:
		serve = s.promises
	case request[0] == methodWaits:
		serve = s.waits
	case request[0] < firstDataMethod:
		serve = s.system
	}
	answer, err := serve(ctx, request[0], &r)
	if err != nil {
		return failedAnswer(err)
	}
	return answer
}

// Unhurried reports whether nobody waits for an answer to a request: what became of a command that was handed to the
// leader its origin hears from its own replica, unless it never applies.
func Unhurried(request, answer []byte) bool {
	return len(request) > 0 && request[0] == methodForward && len(answer) > 0 && answer[0] == codeOK
}

// applied answers how far a replica here has applied, unless it must not take over.
func (s *Server) applied(_ context.Context, _ byte, r *reader) ([]byte, error) {
	id := r.uvarint()
	if err := r.done(); err != nil {
		return nil, err
	}
	replica := s.SystemLog
	if d := s.Shards[id]; d != nil {
		replica = d.Replica()
	} else if id != placement.SystemShard {
		replica = nil
	}
	switch {
	case replica == nil:
		return nil, raft.ErrNotLeader
	case s.Unfit != nil && s.Unfit():
		return nil, raft.ErrStopped
	}
	return binary.AppendUvarint([]byte{codeOK}, replica.Applied()), nil
}

// missed answers whether this node misses another.
func (s *Server) missed(_ context.Context, _ byte, r *reader) ([]byte, error) {
	node := r.uvarint()
	if err := r.done(); err != nil {
		return nil, err
	}
	if s.Missed == nil {
		return nil, raft.ErrStopped
	}
	return appendBool([]byte{codeOK}, s.Missed(node)), nil
}

// open answers whether this node coordinates a transaction.
func (s *Server) open(_ context.Context, _ byte, r *reader) ([]byte, error) {
	id, err := r.txn()
	switch {
	case err != nil:
		return nil, err
	case s.Open == nil:
		return nil, raft.ErrStopped
	}
	return appendBool([]byte{codeOK}, s.Open(id)), nil
}

// promises has shards that are led here promise all their keys, side by side. What takes
// more than twice as long as the first is left to be asked for by itself, so that it holds
// up no other.
func (s *Server) promises(ctx context.Context, _ byte, r *reader) ([]byte, error) {
	rev := r.varint()
	var wanted []*shard.Data
	for range r.count(1) {
		if d := s.Shards[r.uvarint()]; d != nil {
			wanted = append(wanted, d)
		}
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type promised struct {
		id, index uint64
		err       error
	}
	answers := make(chan promised, len(wanted))
	asking.Go(func() {
		shard.PromiseEach(ctx, rev, wanted, func(d *shard.Data, index uint64, err error) {
			answers <- promised{d.Replica().ShardID(), index, err}
		})
	})
	var rest []byte
	count := uint64(0)
	began := time.Now()
	late := time.NewTimer(forEver)
	defer late.Stop()
	for range wanted {
		select {
		case p := <-answers:
			if p.err != nil {
				continue
			}
			rest = binary.AppendUvarint(binary.AppendUvarint(rest, p.id), p.index)
			if count++; count == 1 {
				late.Reset(max(time.Since(began), promisesLate))
			}
			continue
		case <-late.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		break
	}
	return append(binary.AppendUvarint([]byte{codeOK}, count), rest...), nil
}

const (
	// promisesLate is how much later than the first others may be at least.
	promisesLate = 5 * time.Millisecond
	// forEver is longer than any call lasts.
	forEver = time.Hour
)

// data answers a call for a data shard. One that comes to a leader before it serves waits
// for that: the caller would only ask again.
func (s *Server) data(ctx context.Context, method byte, r *reader) ([]byte, error) {
	call, ok := dataCalls[method]
	if !ok {
		return nil, fmt.Errorf("%w: method %d", errMalformed, method)
	}
	d := s.Shards[r.uvarint()]
	if d == nil {
		return nil, raft.ErrNotLeader
	}
	run := call(d, r)
	if err := r.done(); err != nil {
		return nil, err
	}
	if method != methodFingerprint {
		if err := d.Replica().AwaitBegun(ctx); err != nil {
			return nil, err
		}
	}
	return run(ctx, []byte{codeOK})
}

// dataCalls read the arguments of each method and return what carries it out, which
// writes the result behind dst.
var dataCalls = map[byte]func(d *shard.Data, r *reader) func(ctx context.Context, dst []byte) ([]byte, error){
	methodForward: func(d *shard.Data, r *reader) func(context.Context, []byte) ([]byte, error) {
		sent, err := shard.CutSent(r.rest)
		r.rest = nil
		return func(ctx context.Context, dst []byte) ([]byte, error) {
			if err != nil {
				return nil, err
			}
			return dst, d.WriteForwarded(ctx, sent)
		}
	},
	methodConfirm: func(d *shard.Data, _ *reader) func(context.Context, []byte) ([]byte, error) {
		return indexed(d.Confirm)
	},
	methodPromise: func(d *shard.Data, r *reader) func(context.Context, []byte) ([]byte, error) {
		rev, reads := r.varint(), r.spans()
		return indexed(func(ctx context.Context) (uint64, error) { return d.Promise(ctx, rev, reads) })
	},
	methodRaise: func(d *shard.Data, r *reader) func(context.Context, []byte) ([]byte, error) {
		f := shard.Fence{Epoch: r.uvarint(), Closed: r.bool()}
		return indexed(func(ctx context.Context) (uint64, error) { return d.Raise(ctx, f) })
	},
	methodSweepTo: func(d *shard.Data, r *reader) func(context.Context, []byte) ([]byte, error) {
		rev := r.varint()
		return func(ctx context.Context, dst []byte) ([]byte, error) { return dst, d.SweepTo(ctx, rev) }
	},
	methodRenew: func(d *shard.Data, r *reader) func(context.Context, []byte) ([]byte, error) {
		id := r.varint()
		return func(ctx context.Context, dst []byte) ([]byte, error) {
			ttl, err := d.Renew(ctx, id)
			return binary.AppendVarint(dst, ttl), err
		}
	},
	methodRenewAhead: func(d *shard.Data, r *reader) func(context.Context, []byte) ([]byte, error) {
		id := r.varint()
		return func(ctx context.Context, dst []byte) ([]byte, error) {
			a, err := d.RenewAhead(ctx, id)
			return binary.AppendUvarint(binary.AppendUvarint(binary.AppendVarint(dst, a.TTL), a.Term), a.Number), err
		}
	},
	methodTimeToLive: func(d *shard.Data, r *reader) func(context.Context, []byte) ([]byte, error) {
		id, attached := r.varint(), r.bool()
		return func(ctx context.Context, dst []byte) ([]byte, error) {
			life, found, err := d.TimeToLive(ctx, id, attached)
			if err != nil || !found {
				return dst, err
			}
			return appendLife(dst, &life), nil
		}
	},
	methodAwaitEnded: func(d *shard.Data, r *reader) func(context.Context, []byte) ([]byte, error) {
		id := r.varint()
		return func(ctx context.Context, dst []byte) ([]byte, error) { return dst, d.AwaitEnded(ctx, id) }
	},
	methodRegister: func(d *shard.Data, r *reader) func(context.Context, []byte) ([]byte, error) {
		id, shardID := r.varint(), r.uvarint()
		return indexed(func(ctx context.Context) (uint64, error) { return d.Register(ctx, id, shardID) })
	},
	methodFingerprint: func(d *shard.Data, r *reader) func(context.Context, []byte) ([]byte, error) {
		rev, floor := r.varint(), r.varint()
		return func(ctx context.Context, dst []byte) ([]byte, error) {
			f, err := d.Fingerprint(ctx, rev, floor)
			dst = binary.AppendVarint(binary.AppendVarint(dst, f.Rev), f.Floor)
			return binary.AppendUvarint(dst, uint64(f.Sum)), err
		}
	},
	methodFinish: func(d *shard.Data, r *reader) func(context.Context, []byte) ([]byte, error) {
		list, err := commit.DecodeFinishes(r.rest)
		r.rest = nil
		return func(ctx context.Context, dst []byte) ([]byte, error) {
			if err != nil {
				return nil, err
			}
			return dst, d.Finish(ctx, list)
		}
	},
	methodAbort: func(d *shard.Data, r *reader) func(context.Context, []byte) ([]byte, error) {
		return outcome(r, d.Abort)
	},
	methodSettled: func(d *shard.Data, r *reader) func(context.Context, []byte) ([]byte, error) {
		return outcome(r, d.Settled)
	},
	methodDrop: func(d *shard.Data, r *reader) func(context.Context, []byte) ([]byte, error) {
		ended := list(r, r.count(2), func() lease.Ref { return lease.Ref{ID: r.varint(), Incarnation: r.uvarint()} })
		return func(ctx context.Context, dst []byte) ([]byte, error) { return dst, d.Drop(ctx, ended) }
	},
}

// indexed writes a result of one unsigned number.
func indexed(fn func(context.Context) (uint64, error)) func(context.Context, []byte) ([]byte, error) {
	return func(ctx context.Context, dst []byte) ([]byte, error) {
		v, err := fn(ctx)
		return binary.AppendUvarint(dst, v), err
	}
}

// outcome writes what became of a transaction.
func outcome(
	r *reader, fn func(context.Context, commit.ID) (commit.Outcome, error),
) func(context.Context, []byte) ([]byte, error) {
	id, malformed := r.txn()
	return func(ctx context.Context, dst []byte) ([]byte, error) {
		if malformed != nil {
			return nil, malformed
		}
		out, err := fn(ctx, id)
		return binary.AppendVarint(dst, out.Rev), err
	}
}
