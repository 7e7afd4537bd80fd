package api

import (
	"context"
	"errors"
	"io"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/mvcc"
)

// Store is the keyspace as the KV service sees it. The router implements it.
// Requests have passed validation; the context says whose they are. Response headers carry the revision alone;
// the services add cluster, member and term. An error is a sentinel of a lower
// package or the context's; errors.go turns it into etcd's code and text.
type Store interface {
	Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error)
	// RangeStream hands the answer to emit in chunks whose kvs stay below about
	// maxBytes; header, more and count travel with the last one.
	RangeStream(ctx context.Context, r *pb.RangeRequest, maxBytes int, emit func(*pb.RangeResponse) error) error
	Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error)
	DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error)
	// Txn runs a transaction. One that only reads is answered without a Raft
	// entry.
	Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error)
	Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error)

	// RangeInShard is Range of the newest keys of one shard, behind a proof of that shard
	// alone.
	RangeInShard(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error)
	// LeaseRenewAhead renews a lease whose home has a key, and leaves the proof to what that shard applies
	// later: until then proved answers nothing, and afterwards it is RangeInShard of a moment behind the
	// call. A ttl of 0 says that nothing was renewed.
	LeaseRenewAhead(ctx context.Context, id int64, key []byte) (
		ttl int64, proved func(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error), err error)
	// Peek answers a range request from what this node knows at revision least or later,
	// whoever asks.
	Peek(ctx context.Context, r *pb.RangeRequest, least int64) (*pb.RangeResponse, error)
	// Divided reports whether the keys of a range lie on several shards.
	Divided(key, end []byte) bool
}

// Leases is the lease table as the Lease service sees it.
type Leases interface {
	LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error)
	LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error)
	// LeaseRenew renews lease id at the moment of the call, then proves
	// leadership and answers. A TTL of 0 says that there is no such lease.
	LeaseRenew(ctx context.Context, id int64) (*pb.LeaseKeepAliveResponse, error)
	LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error)
	LeaseLeases(ctx context.Context, r *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error)
}

// Watches opens groups of watchers. The router implements it.
type Watches interface {
	// NewWatchGroup returns the watchers of one client stream.
	NewWatchGroup() WatchGroup
}

// WatchGroup is the watchers of one client stream. One goroutine calls its
// methods; Close ends all of the watchers.
type WatchGroup interface {
	// Add starts a watcher under an id that is free in the group and returns the
	// revision for the header of its created answer.
	Add(id int64, o mvcc.WatchOptions) (rev int64)
	// Remove ends a watcher, of which Poll then returns nothing more; it reports
	// whether there was one.
	Remove(id int64) bool
	// Ready is readable when Poll may have something.
	Ready() <-chan struct{}
	// Poll returns the next batch of one of the watchers, or false.
	Poll() (mvcc.WatchBatch, bool, error)
	// Progress returns a revision up to which every watcher of the group has
	// been handed everything; false while one of them lags, starts in the future
	// or has ended and was not removed, and where there is none. later says that
	// it is on its way: Ready tells when to ask again.
	Progress() (rev int64, ok, later bool)
	// ProgressOf is Progress of the watcher id alone: neither a sibling that lags
	// nor one with a future start is in its way.
	ProgressOf(id int64) (rev int64, ok, later bool)
	Close()
}

// Users is the users and roles as the services see them. The router implements it.
type Users interface {
	// Users returns those that this node knows. Once they have been returned, no
	// request passes any more that was checked against older ones.
	Users(ctx context.Context) (*auth.State, error)
	// ProveUsers proves that those returned by Users are still the newest, where requests are
	// checked. router.ErrOutdated says that they are not.
	ProveUsers(ctx context.Context, users *auth.State) error
	// ConfirmUsers returns the newest.
	ConfirmUsers(ctx context.Context) (*auth.State, error)
	// ChangeUsers makes one change, as the sender in r's header.
	ChangeUsers(ctx context.Context, r *pb.InternalRaftRequest) error
	// Login has a simple token made of prefix for a user whose password was right.
	Login(ctx context.Context, user, prefix string) (token string, err error)
}

// Cluster is what the services tell of the nodes. Placement implements it.
type Cluster interface {
	// ClusterID and MemberID never change while the process runs.
	ClusterID() uint64
	MemberID() uint64
	// Term is the system shard's Raft term, for response headers.
	Term() uint64
	// Leader is the member that leads the system shard, 0 while there is none.
	Leader() uint64
	Membership
	// Alarms lists the raised alarms as this node knows them.
	Alarms() []*pb.AlarmMember
	// RaiseAlarm and ClearAlarm go through the system shard. They return the
	// alarms that the call changed.
	RaiseAlarm(ctx context.Context, member uint64, a pb.AlarmType) ([]*pb.AlarmMember, error)
	ClearAlarm(ctx context.Context, member uint64, a pb.AlarmType) ([]*pb.AlarmMember, error)
}

// Membership is the nodes of the cluster, and the changes of them.
type Membership interface {
	// IsLearner reports whether this node does not vote, and so serves little.
	IsLearner() bool
	// Members lists the nodes. A linearizable list is confirmed by the system
	// shard's leader first.
	Members(ctx context.Context, linearizable bool) ([]*pb.Member, error)
	// AddMember, PromoteMember, RemoveMember and UpdateMember change the members, if that is safe. Their errors are
	// those of package system. An error of ctx leaves open whether the change is made.
	AddMember(ctx context.Context, peerURLs []string, learner bool) (id uint64, err error)
	PromoteMember(ctx context.Context, id uint64) error
	RemoveMember(ctx context.Context, id uint64) error
	UpdateMember(ctx context.Context, id uint64, peerURLs []string) error
}

// NodeStatus is what Maintenance.Status tells of this node beside its header.
type NodeStatus struct {
	// DBSize and DBSizeInUse are the logical sizes in bytes of all retained versions and of the
	// current ones, each with the leases. The first is not below the second.
	DBSize, DBSizeInUse int64
	// RaftIndex and RaftAppliedIndex are the indexes of the data shards' logs that this
	// node knows to be committed and has applied, added up over the shards.
	RaftIndex, RaftAppliedIndex uint64
}

// ErrNotMoved is returned for a member that did not take over the leadership in time.
var ErrNotMoved = errors.New("api: the leadership was not taken over in time")

// Maintenance is the node's own business: state, hashes, backup.
type Maintenance interface {
	Status() NodeStatus
	// ReadOwn proves that what this node holds can be read. It waits for no other node.
	ReadOwn(ctx context.Context) error
	// DBSize is the logical size in bytes of all retained versions and of the leases, what
	// the quota counts. It is asked for before every write, so it must be cheap.
	DBSize() int64
	// Revision is an issued revision that this node knows; it may lag. Lease,
	// alarm and status headers carry it.
	Revision() int64
	// HashKV hashes the versions up to revision rev (0 = newest).
	HashKV(ctx context.Context, rev int64) (*pb.HashKVResponse, error)
	// Hash hashes the whole state of this node's replica.
	Hash(ctx context.Context) (uint32, error)
	// MoveLeader has a member lead the system shard, and the data shards that this node
	// leads. ErrNotMoved says that it did not take over in time.
	MoveLeader(ctx context.Context, member uint64) error
	// Defragment gives space of removed versions back to the disk.
	Defragment(ctx context.Context) error
	// WriteSnapshot writes a backup of the whole keyspace at one revision in the
	// format of docs/snapshot.md, without padding and without checksum.
	WriteSnapshot(ctx context.Context, w io.Writer) error
}
