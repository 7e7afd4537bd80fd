package restore

import (
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/backup"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/system"
)

// Options say which state is made.
type Options struct {
	// ReplicaID is that of the node's replicas.
	ReplicaID uint64
	// Splits are those that the cluster will be made with.
	Splits [][]byte
	// Bump is by how much the revision goes on above the backup's next one.
	Bump int64
	// MarkCompacted has what lies below the new revision be compacted, and not only what lies
	// below the backup's next one.
	MarkCompacted bool
}

// batchBytes is about how much is written at once.
const batchBytes = 4 << 20

// Load writes the state of all replicas of a node, where none has been opened, from a backup of
// size bytes. It is durable when db has been flushed. After an error what is there is of no use.
func Load(db *pebble.DB, r io.Reader, size int64, o Options) (err error) {
	l := &loader{db: db, batch: db.NewBatch(), pieces: placement.FirstMap(o.Splits), shards: make(map[uint64]*dataShard), users: auth.New()}
	defer func() { _ = l.batch.Close() }()
	for i := range len(o.Splits) + 1 {
		id := placement.FirstDataShard + uint64(i)
		prefix := raft.Prefix(id, o.ReplicaID)
		leases, err := lease.Open(db, prefix)
		if err != nil {
			return err
		}
		l.shards[id] = &dataShard{id: id, leases: leases, keys: mvcc.NewRestorer(prefix)}
	}
	summary, err := backup.Read(r, size, backup.Contents{
		Revision: l.revision, Lease: l.lease, Auth: l.auth, Role: l.role, User: l.user, Key: l.key,
	})
	if err != nil {
		return err
	}
	// No change was ever made at the next revision. So a watch from there on misses nothing, and
	// one from the backup's, at which more may have changed than is known, is told that it would.
	compact := max(summary.Revision, 1) + 1
	rev := compact + o.Bump
	if o.MarkCompacted {
		compact = rev
	}
	for _, s := range l.shards {
		if err := s.keys.Finish(l.batch, rev, compact); err != nil {
			return err
		}
	}
	order := system.OrderRecord{Compacted: -1}
	if len(l.shards) > 1 {
		order = system.OrderRecord{Begun: true, Limit: rev, Base: rev, Compacted: compact}
	}
	if err := system.Restore(l.batch, raft.Prefix(placement.SystemShard, o.ReplicaID), l.users, order); err != nil {
		return err
	}
	return l.batch.Commit(pebble.NoSync)
}

// dataShard is a data shard in the making.
type dataShard struct {
	id     uint64
	leases *lease.Table
	keys   *mvcc.Restorer
}

type loader struct {
	db     *pebble.DB
	batch  *pebble.Batch
	pieces placement.Map
	shards map[uint64]*dataShard
	users  *auth.State
	rev    int64
}

// owner returns the shard that owns the first of positions.
func (l *loader) owner(s keys.Span) *dataShard {
	return l.shards[l.pieces.Locate(s.Start, s.End)[0].Shard]
}

func (l *loader) revision(rev int64) error {
	l.rev = rev
	return nil
}

func (l *loader) lease(r *pb.LeaseGrantRequest) error {
	_, err := l.owner(keys.LeasePositions(r.ID)).leases.Grant(l.batch, r.ID, r.TTL)
	return err
}

func (l *loader) auth(s *pb.AuthStatusResponse) error {
	l.users.Enabled, l.users.Revision = s.Enabled, s.AuthRevision
	if s.Enabled {
		l.users.Epoch = 1 // the shards are fenced below
	}
	return nil
}

func (l *loader) role(r *authpb.Role) error {
	role := auth.RoleOf(r)
	l.users.Roles[role.Name] = role
	return nil
}

func (l *loader) user(u *authpb.User) error {
	user := auth.UserOf(u)
	l.users.Users[user.Name] = user
	return nil
}

func (l *loader) key(kv *mvccpb.KeyValue) error {
	if kv.ModRevision > l.rev || kv.ModRevision < 1 || len(kv.Key) == 0 {
		return fmt.Errorf("%w: key %q is of revision %d", backup.ErrDamaged, kv.Key, kv.ModRevision)
	}
	s := l.owner(keys.Positions(keys.Point(kv.Key)))
	if err := s.keys.Put(l.batch, kv); err != nil {
		return err
	}
	if kv.Lease != 0 {
		if home := l.owner(keys.LeasePositions(kv.Lease)); home != s {
			if err := l.shadow(home, s, kv.Lease); err != nil {
				return fmt.Errorf("lease %x of key %q: %w", kv.Lease, kv.Key, err)
			}
		}
	}
	if l.batch.Len() < batchBytes {
		return nil
	}
	if err := l.batch.Commit(pebble.NoSync); err != nil {
		return err
	}
	l.batch.Reset()
	return nil
}

// shadow has a lease be known where one of its keys is, and that shard at its home.
func (l *loader) shadow(home, s *dataShard, id int64) error {
	incarnation, err := home.leases.Register(l.batch, id, s.id)
	if err != nil {
		return err
	}
	return s.leases.MakeShadow(l.batch, lease.Ref{ID: id, Incarnation: incarnation})
}
