package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/mvcc"
)

// OtherShards is how a data shard reaches the others. The router implements it. Calls go to
// the leader of the shard meant, again while they certainly were not applied.
type OtherShards interface {
	// Register has the home of a lease note that a shard may have keys of it, and
	// returns the lease's incarnation, or lease.ErrNotFound.
	Register(ctx context.Context, id int64, shardID uint64) (incarnation uint64, err error)
	// Drop has a shard delete its keys of leases whose end is decided.
	Drop(ctx context.Context, shardID uint64, ended []lease.Ref) error
	// EndsTogether reports whether leases with keys on several shards end in transactions, as End does
	// it.
	EndsTogether() bool
	// End ends a lease with keys on several shards whose end its home has decided, in one
	// transaction, unless it has ended.
	End(ctx context.Context, home uint64, ref lease.Ref) error
	// PreparesLess reports whether Prepares take no numbers, as all nodes know.
	PreparesLess() bool
	// Finish has a shard make the changes of transactions that are committed.
	Finish(ctx context.Context, shardID uint64, list []commit.Finish) error
	// Settled asks the home of a transaction that holds keys elsewhere what became of it.
	Settled(ctx context.Context, home uint64, id commit.ID) (commit.Outcome, error)
	// Open reports whether the node that coordinates a transaction says that it still does.
	Open(ctx context.Context, id commit.ID) bool
	// Numbered says that commands of a shard that this node leads have got numbers up to
	// rev, and are on their way to the log. It does not block.
	Numbered(shardID uint64, rev int64)
}

// Connect tells the shard how to reach the others.
func (d *Data) Connect(r OtherShards) { d.others.Store(&r) }

// foreignLeases returns the leases that a request may attach keys to, in either
// branch, whose home is not here and which have no shadow here.
func (d *Data) foreignLeases(shape *Shape, request proto.Message) []int64 {
	var ids []int64
	add := func(id int64) {
		if id != 0 && !shape.Owned.Covers(keys.LeasePositions(id)) && !d.leases.Holds(id) && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	switch req := request.(type) {
	case *pb.PutRequest:
		add(req.Lease)
	case *pb.TxnRequest:
		mvcc.EachPut(req, func(put *pb.PutRequest) { add(put.Lease) })
	}
	return ids
}

// pendingLeases counts the commands under way that use a lease kept elsewhere.
type pendingLeases struct {
	mu sync.Mutex
	// counts is protected by mu.
	counts map[int64]int
}

func (p *pendingLeases) add(ids []int64, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counts == nil {
		p.counts = make(map[int64]int)
	}
	for _, id := range ids {
		if p.counts[id] += n; p.counts[id] == 0 {
			delete(p.counts, id)
		}
	}
}

func (p *pendingLeases) has(id int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[id] > 0
}

// turnedAway are the leases that a command was turned away for, since their homes did not
// know them. They may have been granted meanwhile, and what else decides which leases the
// command uses may have changed behind that: a lease does not exist if its home does not
// know it when it is asked after the command was turned away for that very lease.
type turnedAway []int64

// again takes a rejection and reports whether the homes are to be asked again for the
// command. If not, it returns what the rejection is for the client.
func (t *turnedAway) again(rejected error) (bool, error) {
	var unknown unknownLeaseError
	switch {
	case !errors.As(rejected, &unknown):
		return false, rejected
	case slices.Contains(*t, unknown.id):
		return false, mvcc.ErrLeaseNotFound
	}
	*t = append(*t, unknown.id)
	return true, nil
}

// attachAndSubmit puts a command through the log with what the homes say of the leases
// that it may use. What they said is used only in the term in which they were asked.
// Where the command turns out to use a lease that its home did not know they are asked
// again. For a command of another node that node does so, since its id is used up.
func (d *Data) attachAndSubmit(ctx context.Context, p raft.Proposal, ids []int64, g *Guard) (raft.Outcome, error) {
	kind, payload := p.Kind, p.Payload
	var turned turnedAway
	for {
		o, err := d.attachOnce(ctx, p, ids, func(v []verdict) (Kind, []byte) {
			return guarded(g, kindAttached, append(append(appendVerdicts(nil, v), byte(kind)), payload...))
		})
		if err != nil || p.ID != (raft.CommandID{}) {
			return o, err
		}
		var again bool
		if again, o.Err = turned.again(o.Err); !again {
			return o, nil
		}
	}
}

// attachOnce asks the homes and proposes the command. A put with a lease that its home
// does not know need not be proposed.
func (d *Data) attachOnce(ctx context.Context, p raft.Proposal, ids []int64, command func([]verdict) (Kind, []byte)) (o raft.Outcome, err error) {
	others := d.others.Load()
	serving := d.replica.Serving()
	if others == nil || serving == 0 || p.Term != 0 && p.Term != serving {
		return o, raft.ErrNotLeader
	}
	p.Term = serving
	var verdicts []verdict
	d.pending.add(ids, 1)
	defer d.pending.add(ids, -1)
	for _, id := range ids {
		incarnation, err := (*others).Register(ctx, id, d.replica.ShardID())
		if err != nil && !errors.Is(err, lease.ErrNotFound) {
			return o, err
		}
		verdicts = append(verdicts, verdict{id, incarnation})
	}
	if Kind(p.Kind) == KindPut && verdicts[0].incarnation == 0 {
		return o, mvcc.ErrLeaseNotFound
	}
	d.replica.Stall("registered")
	kind, payload := command(verdicts)
	p.Kind, p.Payload = raft.Kind(kind), payload
	return d.replica.Decide(ctx, p)
}

// Register notes that another shard may have keys of a lease that is kept here, and
// returns the lease's incarnation. Errors are those of Replica.Propose,
// lease.ErrNotFound and lease.ErrEnding. While the lease ends it waits until its keys are gone.
func (d *Data) Register(ctx context.Context, id int64, shardID uint64) (uint64, error) {
	if err := d.awaitNeed(ctx, &need{leases: []int64{id}}); err != nil {
		return 0, err
	}
	payload := binary.AppendUvarint(binary.AppendVarint(nil, id), shardID)
	result, err := d.replica.Propose(ctx, raft.Kind(kindLeaseRegister), payload)
	if err != nil {
		return 0, err
	}
	incarnation, ok := result.(uint64)
	if !ok {
		return 0, fmt.Errorf("register lease: the command answered %T", result)
	}
	return incarnation, nil
}

// Drop deletes the keys of leases whose end their homes have decided. Errors are those
// of Replica.Submit. Where a transaction holds some of them it is raft.ErrTimeout, after the
// others have been deleted: all may be asked for again.
func (d *Data) Drop(ctx context.Context, ended []lease.Ref) error {
	left, err := d.replica.Submit(ctx, raft.Proposal{
		Kind: raft.Kind(kindLeaseDrop), Payload: appendRefs(ended), Numbers: len(ended), Writes: raft.Writes{Unknown: true},
	})
	if n, ok := left.(int); ok && n > 0 {
		return raft.ErrTimeout
	}
	return err
}

func appendRefs(refs []lease.Ref) []byte {
	var payload []byte
	for _, r := range refs {
		payload = appendLeaseRef(payload, leaseRef{id: r.ID, incarnation: r.Incarnation})
	}
	return payload
}

// AttachedAt returns the keys that hung on a lease at revision rev, which has been
// promised, in order. Errors are those of mvcc.View.
func (d *Data) AttachedAt(ctx context.Context, id, rev int64) ([][]byte, error) {
	if err := d.AwaitSettled(ctx, func() bool { return d.store.HeldFrom() >= rev }); err != nil {
		return nil, err
	}
	var v *mvcc.View
	var now [][]byte
	d.replica.Between(func() { v, now = d.store.View(), d.leases.Keys(id) })
	defer v.Close()
	if err := v.At(rev); err != nil {
		return nil, err
	}
	return v.AttachedAt(ctx, id, now)
}

// LeaseRef returns the grant of a lease that is kept here, false if there is none, as this replica
// has applied it.
func (d *Data) LeaseRef(id int64) (lease.Ref, bool) {
	rec, ok := d.leases.Get(id)
	return rec.Ref(), ok
}

// Holders returns the shards that may have keys of a lease that is kept here, other
// than this one.
func (d *Data) Holders(id int64) []uint64 { return d.leases.Registered(id) }
