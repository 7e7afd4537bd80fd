package lock

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/mvcc"
)

// Errors of calls.
var (
	// ErrLost is returned to a caller whose own key has gone while it waited, mostly because
	// its lease has ended.
	ErrLost = errors.New("lock: the caller's key is gone")
	// ErrNotLeader is returned to a candidate for what only the leader may do.
	ErrNotLeader = errors.New("lock: the candidate is not the leader")
	// ErrNoLeader is returned where nobody has campaigned.
	ErrNoLeader = errors.New("lock: there is no leader")
	// ErrClosed is returned to who waits when the service is closed.
	ErrClosed = errors.New("lock: the service is closed")
)

// Store is the keyspace and its leases. Calls are made with the context of the client's
// call, and so with its rights; errors are passed on to the client as they are.
type Store interface {
	Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error)
	Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error)
	// RangeInShard is Range of keys of one shard, behind a proof of that shard alone.
	RangeInShard(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error)
	DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error)
	LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error)
	LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error)
	// LeaseRenew renews a lease at the moment of the call. A TTL of 0 says that there is no
	// such lease.
	LeaseRenew(ctx context.Context, id int64) (*pb.LeaseKeepAliveResponse, error)
	// LeaseRenewAhead renews a lease whose home has a key, and leaves the proof to what that shard applies
	// later: until then proved answers nothing, and afterwards it is RangeInShard of a moment behind the
	// call. A ttl of 0 says that nothing was renewed.
	LeaseRenewAhead(ctx context.Context, id int64, key []byte) (
		ttl int64, proved func(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error), err error)
	// LeaseTimeToLive tells what a lease has left, a TTL of -1 that there is no such lease.
	LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error)
	// Divided reports whether keys of a range lie on several shards, so that no transaction
	// can hold them all.
	Divided(key, end []byte) bool
}

// Node is the keyspace as this node itself reads it. No rights are asked for it.
type Node interface {
	// Peek answers a range request from what the node knows at revision least or later.
	Peek(ctx context.Context, r *pb.RangeRequest, least int64) (*pb.RangeResponse, error)
	// Watchers returns watchers of what this node applies.
	Watchers() Watchers
	// Prove answers a range request for keys of one shard, behind a proof of that shard alone.
	Prove(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error)
}

// Watchers are some watchers of the keyspace. One goroutine calls the methods.
type Watchers interface {
	// Add starts a watcher and returns a revision up to which it has been handed everything;
	// without a start in o it is handed all after that.
	Add(id int64, o mvcc.WatchOptions) (rev int64)
	Remove(id int64) bool
	// Ready is readable when Poll may have something.
	Ready() <-chan struct{}
	// Poll returns the next batch, or false.
	Poll() (mvcc.WatchBatch, bool, error)
	Close()
}

// Service has callers take turns. Close ends it.
type Service struct {
	store Store
	node  Node
	peers Peers
	// patience is how long a search for deadlocks waits for another node.
	patience time.Duration
	// now tells the time, which is passed on and decides nothing.
	now func() time.Time

	// leaving has room for those who give up a place at a time.
	leaving chan struct{}

	granted granted

	// ctx ends with the service, by stop.
	ctx  context.Context //nolint:containedctx // the lifetime of what follows queues, which belongs to no call
	stop context.CancelCauseFunc
	// tracking counts the goroutines that follow queues, look out for deadlocks and ask other
	// nodes.
	tracking sync.WaitGroup

	mu sync.Mutex
	// tracked are the queues that somebody waits in, by prefix; protected by mu, with what
	// follows.
	tracked map[string]*tracker
	// clients are the waiters of clients with a name. While there are any, looking says that
	// somebody looks out for deadlocks among them.
	clients map[string][]*waiter
	looking bool
	// silent are the nodes that have a question to answer.
	silent map[uint64]bool
}

// maxLeaving is how many callers give up their places at a time. Where thousands are lost at
// once the others wait, so that they are not turned away by a shard that has too many
// requests, and leave nothing behind.
const maxLeaving = 256

// maxDeparture is how long that may take each of them. Without a majority nobody can leave, and
// a server that stops waits for those who try.
const maxDeparture = 10 * time.Second

// Config is what a Service is made of.
type Config struct {
	// Store and Node are the keyspace.
	Store Store
	Node  Node
	// Peers are the other nodes; nil where there are none.
	Peers Peers
	// Patience is how long a search for deadlocks waits for a node that does not answer.
	Patience time.Duration
	// Now tells the time of day.
	Now func() time.Time
}

// New returns a service over a node's keyspace.
func New(c Config) *Service {
	ctx, stop := context.WithCancelCause(context.Background())
	return &Service{
		store: c.Store, node: c.Node, peers: c.Peers, patience: c.Patience, now: c.Now, leaving: make(chan struct{}, maxLeaving),
		ctx: ctx, stop: stop, tracked: make(map[string]*tracker), clients: make(map[string][]*waiter), silent: make(map[uint64]bool),
	}
}

// Close ends what follows queues and looks out for deadlocks, and who still waits hears ErrClosed. It returns when
// nothing of the service runs but calls, which the caller ends.
func (s *Service) Close() {
	s.mu.Lock()
	s.stop(ErrClosed)
	s.mu.Unlock()
	s.tracking.Wait()
}
