package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/mvcc"
)

// Kind says what a command of a data shard is.
type Kind raft.Kind

// The kinds of a data shard's commands. The numbers are in the log for ever. A payload
// whose last part is not known stops a node, as an unknown kind does: what is more to be
// said takes a kind of its own, or a field of etcd's request, and is proposed when the cluster version
// says that all nodes know it.
const (
	// KindPut to KindLeaseRevoke carry etcd's request of that name.
	KindPut         Kind = 1
	KindDeleteRange Kind = 2
	KindTxn         Kind = 3
	KindCompact     Kind = 4
	KindLeaseGrant  Kind = 5
	KindLeaseRevoke Kind = 6
	// kindLeaseExpire ends leases whose time has passed.
	kindLeaseExpire Kind = 7
	// kindLeaseAging logs what remains of silent leases.
	kindLeaseAging Kind = 8
	// kindLeaseFresh takes the logged remainder of a lease back.
	kindLeaseFresh Kind = 9
	// kindGuarded carries a Guard and the command that it is for.
	kindGuarded Kind = 10
	// kindFence carries a Fence.
	kindFence Kind = 11
	// kindFirstShape carries a Shape.
	kindFirstShape Kind = 12
	// kindOrder makes the shard an ordered one.
	kindOrder Kind = 13
	// kindSweep carries the compaction revision of the cluster.
	kindSweep Kind = 14
	// kindAttached carries what is known of leases that are kept elsewhere, and the
	// command that uses them.
	kindAttached Kind = 15
	// kindLeaseRegister and kindLeaseForget go to the home of leases, the one before
	// another shard has keys of them and the other after all shards have deleted
	// theirs. kindLeaseDrop has a shard delete them.
	kindLeaseRegister Kind = 16
	kindLeaseDrop     Kind = 17
	kindLeaseForget   Kind = 18
	// kindDropTombstones takes tombstones of leases away.
	kindDropTombstones Kind = 19
	// kindPrepare to kindFinish are of transactions over several shards: kindPrepare carries
	// what was checked and a commit.Prepare, kindDecide the same and a commit.Decision,
	// kindFinish several commit.Finish; kindAbort and kindForgetCommitted carry ids.
	kindPrepare         Kind = 20
	kindDecide          Kind = 21
	kindFinish          Kind = 22
	kindAbort           Kind = 23
	kindForgetCommitted Kind = 24
	// kindLeaseEnd is kindLeaseExpire, and KindLeaseRevokeHere is KindLeaseRevoke, for leases with
	// keys on other shards: those end in transactions over all shards that have some. The one only
	// decides that they end, and the other changes nothing.
	kindLeaseEnd        Kind = 25
	KindLeaseRevokeHere Kind = 26
	// kindPrepareUnnumbered is kindPrepare that takes no number: it carries one that the transaction's is above.
	kindPrepareUnnumbered Kind = 27
)

// Data is a replica of a data shard: versioned keys and leases.
type Data struct {
	replica  *raft.Replica
	observer Observer
	log      *slog.Logger
	db       *pebble.DB
	// prefix opens the keys of the replica's records.
	prefix []byte
	store  *mvcc.Store
	leases *lease.Table
	// transactions are those over several shards.
	transactions *commit.Table
	keeper       *keeper
	ender        *ender
	settler      *settler
	holding      holding
	// line is the Prepares under way here, while this node leads.
	line *line
	// heldBack counts the commands that wait for transactions to let keys go.
	heldBack atomic.Int64
	// pending counts the commands under way that use a lease kept elsewhere.
	pending pendingLeases
	// others is how the shard reaches others, nil until Connect.
	others  atomic.Pointer[OtherShards]
	sweeper *sweeper
	// fence is the fence as of the state that was published last.
	fence atomic.Pointer[Fence]
	// shape is the shape as of that state.
	shape atomic.Pointer[Shape]
}

var _ raft.Machine = (*Data)(nil)

// DataConfig names a data shard's replica.
type DataConfig struct {
	ShardID, ReplicaID uint64
	// Members are the first members' NodeHostIDs by replica id.
	Members map[uint64]string
	// Oracle numbers the commands of an ordered shard.
	Oracle raft.Oracle
	// Observer hears what the shard does; nil is for nobody.
	Observer Observer
}

// Start opens a data shard's state and starts its replica on a host.
func Start(h *raft.Host, c DataConfig) (*Data, error) {
	if c.Observer == nil {
		c.Observer = unobserved{}
	}
	d, err := open(h.DB(), c.ShardID, c.ReplicaID)
	if err != nil {
		return nil, err
	}
	d.observer, d.log = c.Observer, h.Log().With(slog.Uint64("shard", c.ShardID))
	d.sweeper = newSweeper(d.store, h, d.observer, d.log)
	d.sweeper.start()
	_, err = h.Start(raft.ReplicaConfig{
		ShardID: c.ShardID, ReplicaID: c.ReplicaID, Members: c.Members,
		Machine: d, Leads: d.keeper, Oracle: c.Oracle, Bind: func(r *raft.Replica) { d.replica = r },
		Observe: d.observe, Resolved: d.store.Resolve, Numbered: d.numbered,
	})
	if err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// open loads the state of a data shard's replica.
func open(db *pebble.DB, shardID, replicaID uint64) (*Data, error) {
	prefix := raft.Prefix(shardID, replicaID)
	store, err := mvcc.Open(db, prefix)
	if err != nil {
		return nil, fmt.Errorf("open keys of shard %d: %w", shardID, err)
	}
	leases, err := lease.Open(db, prefix)
	if err != nil {
		return nil, fmt.Errorf("open leases of shard %d: %w", shardID, err)
	}
	transactions, err := commit.Open(db, prefix)
	if err != nil {
		return nil, fmt.Errorf("open shard %d: %w", shardID, err)
	}
	fence, err := readFence(db, prefix)
	if err != nil {
		return nil, fmt.Errorf("open shard %d: %w", shardID, err)
	}
	shape, err := readShape(db, prefix)
	if err != nil {
		return nil, fmt.Errorf("open shard %d: %w", shardID, err)
	}
	d := &Data{db: db, prefix: prefix, store: store, leases: leases, transactions: transactions, line: newLine()}
	d.fence.Store(&fence)
	d.shape.Store(&shape)
	d.keeper = newKeeper(d)
	d.ender = newEnder(d)
	d.settler = newSettler(d)
	d.attach()
	d.holding.loaded(transactions)
	return d, nil
}

// numbered tells the other shards of numbers.
func (d *Data) numbered(rev int64) {
	if others := d.others.Load(); others != nil {
		(*others).Numbered(d.replica.ShardID(), rev)
	}
}

// attach hangs the current keys on their leases.
func (d *Data) attach() {
	v := d.store.View()
	defer v.Close()
	v.EachLease(func(id int64, key []byte) bool {
		if d.leases.Holds(id) {
			d.leases.Attach(id, key)
		}
		return true
	})
}

// Close stops what the state does of its own. It is called after the host was
// closed.
func (d *Data) Close() {
	d.ender.close()
	d.settler.close()
	d.sweeper.close()
}

// Replica returns the Raft side of the shard.
func (d *Data) Replica() *raft.Replica { return d.replica }

// Store returns the keys. A read of its newest state is linearizable behind a
// Confirm of the replica.
func (d *Data) Store() *mvcc.Store { return d.store }

// Write puts one of etcd's requests through the log and returns etcd's answer to
// it, whose header has the revision alone. g is nil for a request that is not
// guarded. Errors are those of Replica.Propose, the rejections of mvcc and lease, and
// for a guarded one ErrOutdated and ErrForbidden.
func (d *Data) Write(ctx context.Context, g *Guard, kind Kind, request proto.Message) (any, error) {
	payload, err := raft.EncodeRequest(request)
	if err != nil {
		return nil, err
	}
	o, err := d.submit(ctx, raft.Proposal{Kind: raft.Kind(kind), Payload: payload}, request, g)
	if err != nil {
		return nil, err
	}
	return o.Result, o.Err
}

// submit puts a request through the log, with a number if the shard is ordered and
// not before it has its first shape.
// Leases that are kept elsewhere are seen to first. g is nil for a command that is not
// guarded.
func (d *Data) submit(ctx context.Context, p raft.Proposal, request proto.Message, g *Guard) (o raft.Outcome, err error) {
	shape := d.Shape()
	if !shape.HasShape() {
		return o, raft.ErrNotLeader
	}
	if d.standsBehind(ctx, request) {
		p.Patience = raft.BehindOthers
	}
	if shape.Ordered {
		if p.Numbers, err = numbers(Kind(p.Kind), p.Payload); err != nil {
			return o, err
		}
		reads, writes, known := touches(request)
		p.Writes = raft.Writes{Spans: writes, Unknown: !known}
		n := need{reads: reads, writes: writes}
		switch req := request.(type) {
		case *pb.LeaseRevokeRequest:
			n.end, n.writes = req.ID, points(d.leases.Keys(req.ID)) // as far as it can be known here
		case *pb.PutRequest:
			n.use(req.Lease)
		case *pb.TxnRequest:
			mvcc.EachPut(req, func(put *pb.PutRequest) { n.use(put.Lease) })
		}
		if err := d.awaitNeed(ctx, &n); err != nil {
			return o, err
		}
		if foreign := d.foreignLeases(shape, request); len(foreign) > 0 {
			return d.attachAndSubmit(ctx, p, foreign, g)
		}
	}
	kind, payload := guarded(g, Kind(p.Kind), p.Payload)
	p.Kind, p.Payload = raft.Kind(kind), payload
	return d.replica.Decide(ctx, p)
}

// Promise is Replica.Promise.
func (d *Data) Promise(ctx context.Context, rev int64, reads []keys.Span) (index uint64, err error) {
	d.hurryFor(rev, reads...)
	return d.replica.Promise(ctx, rev, reads)
}

// BeginPromise is Replica.BeginPromise.
func (d *Data) BeginPromise(ctx context.Context, rev int64) (*raft.Promised, error) {
	return d.replica.BeginPromise(ctx, rev)
}

// PromiseAll is Replica.PromiseAll.
func (d *Data) PromiseAll(ctx context.Context, rev int64) (index uint64, err error) {
	d.hurryFor(rev)
	return d.replica.PromiseAll(ctx, rev)
}

// PromiseEach is raft.PromiseEach for shards of one node. One that is not ordered promises by
// itself.
func PromiseEach(ctx context.Context, rev int64, shards []*Data, answer func(d *Data, index uint64, err error)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	of := make(map[*raft.Replica]*Data, len(shards))
	ordered := make([]*raft.Replica, 0, len(shards))
	for _, d := range shards {
		if d.Shape().Ordered {
			of[d.replica] = d
			d.hurryFor(rev)
			ordered = append(ordered, d.replica)
			continue
		}
		wg.Go(func() {
			index, err := d.PromiseAll(ctx, rev)
			answer(d, index, err)
		})
	}
	raft.PromiseEach(ctx, rev, ordered, func(r *raft.Replica, index uint64, err error) { answer(of[r], index, err) })
}

// Confirm is Replica.Confirm. A replica that has applied the entry at index holds all
// that was acknowledged before the call.
func (d *Data) Confirm(ctx context.Context) (index uint64, err error) {
	if err := d.replica.Confirm(ctx); err != nil {
		return 0, err
	}
	return d.replica.Applied(), nil
}

// SweepTo makes the shard take over the compaction revision of the cluster, as soon as no
// transaction may still change something below. Errors are those of Replica.Propose.
func (d *Data) SweepTo(ctx context.Context, rev int64) error {
	for {
		if err := d.awaitSettled(ctx, func() bool { return d.store.HeldFrom() >= rev }); err != nil {
			return err
		}
		_, err := d.replica.Propose(ctx, raft.Kind(kindSweep), binary.AppendVarint(nil, rev))
		if !errors.Is(err, mvcc.ErrHeld) {
			return err
		}
	}
}

// AwaitSwept waits until everything that the compaction at rev made superfluous
// is gone from this replica.
func (d *Data) AwaitSwept(ctx context.Context, rev int64) error {
	return d.sweeper.await(ctx, rev)
}

// Apply starts a run of commands.
func (d *Data) Apply(b *pebble.Batch) raft.Run {
	r := &dataRun{d: d, batch: b, fence: d.Fence()}
	r.w = d.store.NewWriter(b, runLeases{r})
	r.setShape(*d.Shape())
	return r
}

// BeginReload silences watchers and stops the sweep.
func (d *Data) BeginReload() {
	d.sweeper.hold()
	d.store.BeginReload()
}

// Reload loads keys, leases, fence and shape anew. Readers see fence and shape no
// later than the keys. A compaction that came with them is swept as any other.
func (d *Data) Reload() error {
	defer func() {
		d.sweeper.release()
		d.sweeper.start()
	}()
	fence, err := readFence(d.db, d.prefix)
	if err != nil {
		return err
	}
	d.fence.Store(&fence)
	shape, err := readShape(d.db, d.prefix)
	if err != nil {
		return err
	}
	d.shape.Store(&shape)
	if err := d.store.Reload(); err != nil {
		return err
	}
	if err := d.leases.Reload(); err != nil {
		return err
	}
	if err := d.transactions.Reload(); err != nil {
		return err
	}
	d.holding.loaded(d.transactions)
	d.attach()
	return nil
}
