package router

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/backup"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
)

// backupChunk is about how many bytes of keys are read at a time.
const backupChunk = 1 << 20

// WriteSnapshot writes a backup: all leases, users and roles and all current keys of one
// revision.
func (r *Router) WriteSnapshot(ctx context.Context, w io.Writer) error {
	s, err := r.backupState(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	b := backup.NewWriter(w, s.rev)
	for _, id := range slices.Sorted(maps.Keys(s.leases)) {
		b.Lease(&pb.LeaseGrantRequest{ID: id, TTL: s.leases[id].TTL})
	}
	b.Users(s.users.Messages())
	if err := s.writeKeys(ctx, b); err != nil {
		return err
	}
	return b.Close()
}

// backupState is all keys at one revision, the leases and the users.
type backupState struct {
	*view
	leases map[int64]lease.Record
	users  *auth.State
}

// backupState is the newest state, or what this node holds where there is no majority to prove
// what the newest is.
func (r *Router) backupState(ctx context.Context) (*backupState, error) {
	s := &backupState{}
	var all []reading
	for _, d := range r.shards {
		all = append(all, reading{d: d})
	}
	err := r.awaitLed(ctx, all)
	if err == nil {
		s, err = r.newestBackup(ctx)
	}
	// Where each shard has a leader, or seems to, it is no backup that could not be proved.
	if errors.Is(err, errNoLeader) || errors.Is(err, raft.ErrTimeout) && r.leaderless() {
		return r.heldBackup(), nil
	}
	return s, err
}

// leaderless reports whether a shard has no leader that this node knows.
func (r *Router) leaderless() bool {
	for _, d := range r.shards {
		if d.Replica().Leader().ReplicaID == 0 {
			return true
		}
	}
	return false
}

// heldBackup is all that this node holds of each shard, which need not be of one revision.
func (r *Router) heldBackup() *backupState {
	s := &backupState{leases: make(map[int64]lease.Record), view: &view{r: r, compacted: -1}, users: r.knownUsers()}
	for _, d := range r.shards {
		d.Replica().Between(func() {
			v := d.Store().View()
			s.rev = max(s.rev, v.Rev())
			s.views = append(s.views, opened{d, v})
			for _, rec := range d.Leases() {
				s.leases[rec.ID] = rec
			}
		})
	}
	return s
}

// newestBackup is the newest state. Users and roles have no revision: they were those of the
// moment at which the keys were, if they were the same before and after.
func (r *Router) newestBackup(ctx context.Context) (*backupState, error) {
	users, err := r.ConfirmUsers(ctx)
	for err == nil {
		s, opened := r.openBackup(ctx)
		if opened != nil {
			return nil, opened
		}
		s.users = users
		if users, err = r.ConfirmUsers(ctx); err == nil && users.Same(s.users) {
			return s, nil
		}
		s.close()
	}
	return nil, err
}

// openBackup takes the leases before the view and with it, so that those are there which
// end meanwhile.
func (r *Router) openBackup(ctx context.Context) (_ *backupState, err error) {
	s := &backupState{leases: make(map[int64]lease.Record)}
	take := func() {
		for _, d := range r.shards {
			for _, rec := range d.Leases() {
				s.leases[rec.ID] = rec
			}
		}
	}
	if d, err := r.whole(); err == nil && !d.Shape().Ordered {
		if err := r.confirm(ctx, d); err != nil {
			return s, err
		}
		d.Replica().Between(func() {
			v := d.Store().View()
			s.view = &view{rev: v.Rev(), views: []opened{{d, v}}, r: r}
			take()
		})
		return s, nil
	}
	take()
	if s.view, err = r.openView(ctx, []keys.Span{{}}, fresh{}); err != nil {
		return s, err
	}
	take()
	return s, nil
}

// writeKeys writes the keys. A lease that came and went while the view was opened is
// written with the shortest life, before the first of its keys.
func (s *backupState) writeKeys(ctx context.Context, b *backup.Writer) error {
	parts, err := s.r.parts(keys.Span{})
	if err != nil {
		return err
	}
	for _, p := range parts {
		all := &pb.RangeRequest{Key: p.span.Start, RangeEnd: p.span.RangeEnd()}
		if len(all.Key) == 0 {
			all.Key = []byte{0}
		}
		err := s.ofShard(p.d).RangeChunks(ctx, all, backupChunk, func(chunk *pb.RangeResponse) error {
			for _, kv := range chunk.Kvs {
				if _, known := s.leases[kv.Lease]; kv.Lease != 0 && !known {
					s.leases[kv.Lease] = lease.Record{ID: kv.Lease, TTL: 1}
					b.Lease(&pb.LeaseGrantRequest{ID: kv.Lease, TTL: 1})
				}
				b.Key(kv)
			}
			return b.Err()
		})
		if err != nil {
			return err
		}
	}
	return nil
}
