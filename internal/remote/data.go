package remote

import (
	"context"
	"encoding/binary"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/router"
	"github.com/latchkey-db/latchkey/shard"
)

// The methods of data shards. Behind each comes the shard's id, then the arguments. The
// numbers are spoken between versions, so that they never change; those below 16 are
// the system shard's.
const (
	methodForward    byte = 16
	methodConfirm    byte = 17
	methodPromise    byte = 18
	methodRaise      byte = 19
	methodSweepTo    byte = 20
	methodRenew      byte = 21
	methodTimeToLive byte = 22
	methodAwaitEnded byte = 23
	methodRegister   byte = 24
	methodDrop       byte = 25
	methodApplied    byte = 26
	// methodFingerprint is answered by every replica, too.
	methodFingerprint byte = 27
	methodFinish      byte = 29
	methodAbort       byte = 30
	methodSettled     byte = 31
	methodRenewAhead  byte = 32
	// methodOpen is about a transaction, and answered by the node that coordinates it.
	methodOpen byte = 42
	// methodMissed is about a node, and answered by every other.
	methodMissed byte = 28
	// methodPromises is about several shards that one node leads.
	methodPromises byte = 40
	// methodWaits is about the calls that wait on a node, and answered by every one.
	methodWaits byte = 41
)

// Leaders finds the leaders of data shards on other nodes.
type Leaders struct {
	// Mesh reaches the nodes.
	Mesh Mesh
	// Shards are this node's replicas of the data shards by id.
	Shards map[uint64]*shard.Data
	// NodeOf returns the node that a replica of a shard is on, 0 if none is known.
	NodeOf func(shardID, replicaID uint64) uint64
}

var _ router.Leaders = (*Leaders)(nil)

// Applied returns the index of the log up to which a node has applied a shard. A
// node that answers is there to take over its leadership.
func (l *Leaders) Applied(ctx context.Context, node, shardID uint64) (index uint64, err error) {
	r, err := ask(ctx, l.Mesh, node, binary.AppendUvarint([]byte{methodApplied}, shardID))
	if err != nil {
		return 0, err
	}
	index = r.uvarint()
	return index, r.done()
}

// Fingerprint hashes a shard as another node's replica holds it.
func (l *Leaders) Fingerprint(ctx context.Context, node, shardID uint64, rev, floor int64) (f shard.Fingerprint, err error) {
	request := binary.AppendUvarint([]byte{methodFingerprint}, shardID)
	r, err := ask(ctx, l.Mesh, node, binary.AppendVarint(binary.AppendVarint(request, rev), floor))
	if err != nil {
		return f, err
	}
	f = shard.Fingerprint{Rev: r.varint(), Floor: r.varint(), Sum: uint32(r.uvarint())}
	return f, r.done()
}

// Missed asks a node whether it misses another: it takes that for a leader and has not heard
// of it for an election timeout.
func Missed(ctx context.Context, mesh Mesh, node, missing uint64) (bool, error) {
	r, err := ask(ctx, mesh, node, binary.AppendUvarint([]byte{methodMissed}, missing))
	if err != nil {
		return false, err
	}
	missed := r.bool()
	return missed, r.done()
}

// ask makes a call of a node, whoever leads.
func ask(ctx context.Context, mesh Mesh, node uint64, request []byte) (reader, error) {
	answer, err := mesh.Call(ctx, node, request)
	if err != nil {
		return reader{}, err
	}
	result, err := open(answer)
	return reader{rest: result}, err
}

// Leader returns the leader of a shard on another node as this node's replica knows
// it, nil if there is none.
func (l *Leaders) Leader(shardID uint64) router.Leader {
	d := l.Shards[shardID]
	if d == nil {
		return nil
	}
	known, over := d.Replica().LeaderOfTerm()
	if known.ReplicaID == 0 || known.ReplicaID == d.Replica().ReplicaID() {
		return nil
	}
	node := l.NodeOf(shardID, known.ReplicaID)
	if node == 0 {
		return nil
	}
	return &leader{client: client{mesh: l.Mesh, node: node, over: over}, data: d}
}

// At returns the node that leads a shard, 0 if it is not known or is this one.
func (l *Leaders) At(shardID uint64) (node uint64) {
	d := l.Shards[shardID]
	if d == nil {
		return 0
	}
	known := d.Replica().Leader()
	if known.ReplicaID == 0 || known.ReplicaID == d.Replica().ReplicaID() {
		return 0
	}
	return l.NodeOf(shardID, known.ReplicaID)
}

// Promise has a node promise all keys of shards that it leads.
func (l *Leaders) Promise(ctx context.Context, node uint64, rev int64, shards []uint64) (map[uint64]uint64, error) {
	request := binary.AppendVarint([]byte{methodPromises}, rev)
	request = binary.AppendUvarint(request, uint64(len(shards)))
	for _, id := range shards {
		request = binary.AppendUvarint(request, id)
	}
	r, err := ask(ctx, l.Mesh, node, request)
	if err != nil {
		return nil, err
	}
	indexes := make(map[uint64]uint64)
	for range r.count(2) {
		id := r.uvarint()
		indexes[id] = r.uvarint()
	}
	return indexes, r.done()
}

// leader is one shard's leader on another node.
type leader struct {
	client
	// data is this node's replica.
	data *shard.Data
}

// call makes one call of a method of the shard.
func (l *leader) call(ctx context.Context, repeatable bool, method byte, args func(dst []byte) []byte) (reader, error) {
	request := binary.AppendUvarint([]byte{method}, l.data.Replica().ShardID())
	if args != nil {
		request = args(request)
	}
	return l.roundTrip(ctx, repeatable, request)
}

// Write puts a request through the leader's log. What came of it this node's replica tells.
func (l *leader) Write(ctx context.Context, g *shard.Guard, kind shard.Kind, request proto.Message) (any, error) {
	return l.data.Forward(ctx, l.forward, g, kind, request)
}

// Take hands a step of a transaction to the leader. What came of it this node's replica tells.
func (l *leader) Take(ctx context.Context, g *shard.Guard, s *shard.Step) (any, error) {
	return l.data.ForwardStep(ctx, l.forward, g, s)
}

// Finish is the leader's.
func (l *leader) Finish(ctx context.Context, list []commit.Finish) error {
	_, err := l.call(ctx, true, methodFinish, func(dst []byte) []byte { return commit.AppendFinishes(dst, list) })
	return err
}

// Abort is the leader's.
func (l *leader) Abort(ctx context.Context, id commit.ID) (commit.Outcome, error) {
	return l.outcome(ctx, methodAbort, id)
}

// Settled is the leader's.
func (l *leader) Settled(ctx context.Context, id commit.ID) (commit.Outcome, error) {
	return l.outcome(ctx, methodSettled, id)
}

// outcome asks what became of a transaction.
func (l *leader) outcome(ctx context.Context, method byte, id commit.ID) (out commit.Outcome, err error) {
	r, err := l.call(ctx, true, method, func(dst []byte) []byte { return commit.AppendIDs(dst, id) })
	if err != nil {
		return out, err
	}
	out.Rev = r.varint()
	return out, r.done()
}

// Open asks a node whether it still coordinates a transaction.
func (l *Leaders) Open(ctx context.Context, id commit.ID) bool {
	r, err := ask(ctx, l.Mesh, id.Node, commit.AppendIDs([]byte{methodOpen}, id))
	return err == nil && r.bool() && r.done() == nil
}

// forward hands a command of this node to the leader.
func (l *leader) forward(ctx context.Context, s shard.Sent) error {
	_, err := l.call(ctx, false, methodForward, s.Append)
	return err
}

// index makes a call that may be repeated and whose result is an index of the log.
func (l *leader) index(ctx context.Context, method byte, args func([]byte) []byte) (uint64, error) {
	r, err := l.call(ctx, true, method, args)
	if err != nil {
		return 0, err
	}
	index := r.uvarint()
	return index, r.done()
}

// Confirm proves that the leader leads.
func (l *leader) Confirm(ctx context.Context) (index uint64, err error) {
	return l.index(ctx, methodConfirm, nil)
}

// Promise is the leader's.
func (l *leader) Promise(ctx context.Context, rev int64, reads []keys.Span) (index uint64, err error) {
	return l.index(ctx, methodPromise, func(dst []byte) []byte {
		return appendSpans(binary.AppendVarint(dst, rev), reads)
	})
}

// Raise raises the shard's fence.
func (l *leader) Raise(ctx context.Context, f shard.Fence) (index uint64, err error) {
	return l.index(ctx, methodRaise, func(dst []byte) []byte {
		return appendBool(binary.AppendUvarint(dst, f.Epoch), f.Closed)
	})
}

// SweepTo makes the shard take over a compaction.
func (l *leader) SweepTo(ctx context.Context, rev int64) error {
	_, err := l.call(ctx, true, methodSweepTo, func(dst []byte) []byte { return binary.AppendVarint(dst, rev) })
	return err
}

// Renew renews a lease.
func (l *leader) Renew(ctx context.Context, id int64) (ttl int64, err error) {
	r, err := l.call(ctx, true, methodRenew, func(dst []byte) []byte { return binary.AppendVarint(dst, id) })
	if err != nil {
		return 0, err
	}
	ttl = r.varint()
	return ttl, r.done()
}

// RenewAhead renews a lease, without a proof. A node of an earlier version does not know the call.
func (l *leader) RenewAhead(ctx context.Context, id int64) (a shard.Ahead, err error) {
	r, err := l.call(ctx, true, methodRenewAhead, func(dst []byte) []byte { return binary.AppendVarint(dst, id) })
	if err != nil {
		return a, err
	}
	a.TTL = r.varint()
	a.Term, a.Number = r.uvarint(), r.uvarint()
	return a, r.done()
}

// TimeToLive asks for a lease's life.
func (l *leader) TimeToLive(ctx context.Context, id int64, attached bool) (life shard.LeaseLife, found bool, err error) {
	r, err := l.call(ctx, true, methodTimeToLive, func(dst []byte) []byte {
		return appendBool(binary.AppendVarint(dst, id), attached)
	})
	if err != nil || len(r.rest) == 0 {
		return life, false, err
	}
	life = cutLife(&r)
	return life, true, r.done()
}

// AwaitEnded waits for the end of a lease.
func (l *leader) AwaitEnded(ctx context.Context, id int64) error {
	_, err := l.call(ctx, true, methodAwaitEnded, func(dst []byte) []byte { return binary.AppendVarint(dst, id) })
	return err
}

// Register has the home of a lease note that a shard may have keys of it.
func (l *leader) Register(ctx context.Context, id int64, shardID uint64) (incarnation uint64, err error) {
	r, err := l.call(ctx, true, methodRegister, func(dst []byte) []byte {
		return binary.AppendUvarint(binary.AppendVarint(dst, id), shardID)
	})
	if err != nil {
		return 0, err
	}
	incarnation = r.uvarint()
	return incarnation, r.done()
}

// Drop deletes the keys of leases whose end is decided. What was deleted twice was deleted
// once, so that the call may be repeated.
func (l *leader) Drop(ctx context.Context, ended []lease.Ref) error {
	_, err := l.call(ctx, true, methodDrop, func(dst []byte) []byte {
		dst = binary.AppendUvarint(dst, uint64(len(ended)))
		for _, e := range ended {
			dst = binary.AppendUvarint(binary.AppendVarint(dst, e.ID), e.Incarnation)
		}
		return dst
	})
	return err
}

func appendLife(dst []byte, l *shard.LeaseLife) []byte {
	dst = binary.AppendVarint(binary.AppendVarint(dst, l.ID), l.TTL)
	dst = binary.AppendVarint(binary.AppendUvarint(dst, l.Incarnation), int64(l.Aging))
	dst = binary.AppendVarint(appendBool(dst, l.Ending), int64(l.Remaining))
	// No keys are told from none asked for.
	count := uint64(0)
	if l.Keys != nil {
		count = uint64(len(l.Keys)) + 1
	}
	dst = binary.AppendUvarint(dst, count)
	for _, k := range l.Keys {
		dst = appendBytes(dst, k)
	}
	dst = binary.AppendUvarint(dst, uint64(len(l.Holders)))
	for _, h := range l.Holders {
		dst = binary.AppendUvarint(dst, h)
	}
	return dst
}

func cutLife(r *reader) (l shard.LeaseLife) {
	l.ID, l.TTL = r.varint(), r.varint()
	l.Incarnation, l.Aging = r.uvarint(), time.Duration(r.varint())
	l.Ending, l.Remaining = r.bool(), time.Duration(r.varint())
	if n := r.uvarint(); n > 0 {
		l.Keys = list(r, r.atMost(n-1, 1), r.bytes)
	}
	if n := r.count(1); n > 0 {
		l.Holders = list(r, n, r.uvarint)
	}
	return l
}
