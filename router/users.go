package router

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/shard"
)

// ErrOutdated is returned for a call whose sender's rights changed between the
// check and the moment that counts: where a write applies, or a read looks. Nothing
// was done; the same call may be made again.
var ErrOutdated = errors.New("router: users or roles have changed since the call was checked")

// UserStore is where users and roles are kept. system.Cluster implements it.
type UserStore interface {
	// ConfirmUsers proves that the users and roles that the system shard's state shows are
	// the newest.
	ConfirmUsers(ctx context.Context) error
	// ChangeUsers changes users and roles, as the sender in r's header.
	ChangeUsers(ctx context.Context, r *pb.InternalRaftRequest) error
	// Login has a simple token made.
	Login(ctx context.Context, user, prefix string) (token string, err error)
}

// Users returns the users and roles that this node knows. No request that was
// checked against older ones passes any more: all data shards are fenced first.
func (r *Router) Users(ctx context.Context) (*auth.State, error) {
	s := r.knownUsers()
	for _, d := range r.shards {
		if d.Fence().Epoch >= s.Epoch {
			continue
		}
		err := r.upTo(ctx, d, func(ctx context.Context, l Leader) (uint64, error) {
			return l.Raise(ctx, shard.Fence{Epoch: s.Epoch, Closed: s.Enabled})
		})
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// knownUsers returns the users and roles that this node knows. What was checked against
// older ones may still pass.
func (r *Router) knownUsers() *auth.State {
	if s := r.system.State().Auth; s != nil {
		return s
	}
	return r.nobody
}

// ProveUsers proves that no change was acknowledged before the call which users, that this
// node has handed out, lack: all data shards were fenced before that, so that one that is
// confirmed tells. ErrOutdated says that there was one. Where users are not checked nothing is
// proved, and only what this node knows is looked at; so it is where nothing can be proved,
// before that is said.
func (r *Router) ProveUsers(ctx context.Context, users *auth.State) error {
	var unproved error
	if users.Enabled {
		unproved = r.confirm(ctx, r.ledShard())
	}
	if err := r.holdsOnAll(access{users: users}); err != nil {
		return err
	}
	return unproved
}

// ledShard returns a shard that this node knows to have a leader, any if there is none.
func (r *Router) ledShard() (led *shard.Data) {
	for _, d := range r.shards {
		if led = d; d.Replica().Leader().ReplicaID != 0 {
			break
		}
	}
	return led
}

// ConfirmUsers returns the newest users and roles.
func (r *Router) ConfirmUsers(ctx context.Context) (*auth.State, error) {
	if err := r.userStore.ConfirmUsers(ctx); err != nil {
		return nil, err
	}
	return r.Users(ctx)
}

// ChangeUsers changes users and roles, as the sender in req's header. When it
// returns, no request passes any more that the change forbids.
func (r *Router) ChangeUsers(ctx context.Context, req *pb.InternalRaftRequest) error {
	if err := r.userStore.ChangeUsers(ctx, req); err != nil {
		return err
	}
	_, err := r.Users(ctx)
	return err
}

// Login has a simple token made of prefix for a user whose password was right.
func (r *Router) Login(ctx context.Context, user, prefix string) (token string, err error) {
	return r.userStore.Login(ctx, user, prefix)
}

// access is what a call was checked against, and for whom.
type access struct {
	users *auth.State
	id    auth.Identity
}

// access returns what the call under ctx is to be checked against.
func (r *Router) access(ctx context.Context) (access, error) {
	users, err := r.Users(ctx)
	return access{users: users, id: auth.From(ctx)}, err
}

// guard returns what goes into the log with a write that uses leases, nil where
// requests are not checked.
func (a access) guard(leases ...int64) *shard.Guard {
	if !a.users.Enabled {
		return nil
	}
	g := &shard.Guard{Epoch: a.users.Epoch}
	if len(leases) == 0 {
		return g
	}
	if writable, all := a.users.Writable(a.id); !all {
		g.Leases, g.Writable = leases, writable
	}
	return g
}

// refused turns what a data shard said of a guard into what the sender hears.
func (a access) refused(err error) error {
	switch {
	case errors.Is(err, shard.ErrOutdated):
		return ErrOutdated
	case errors.Is(err, shard.ErrForbidden):
		return a.users.Refusal(a.id)
	default:
		return err
	}
}

// holds reports whether the check still held when the state of d was read, which
// must have been before this call. As in etcd, nothing is read with a token of
// another revision, be it a later one.
func (a access) holds(d *shard.Data) error {
	if d.Fence().Epoch > a.users.Epoch {
		return ErrOutdated
	}
	return a.current()
}

// holdsOnAll is access.holds for all shards. It is for what was read of several of them,
// or of another node's replica.
func (r *Router) holdsOnAll(a access) error {
	for _, d := range r.shards {
		if d.Fence().Epoch > a.users.Epoch {
			return ErrOutdated
		}
	}
	return nil
}

// current reports whether the sender's token is of the revision of the users that the
// call was checked against.
func (a access) current() error {
	if a.users.Enabled && a.id.Revision != 0 && a.id.Revision != a.users.Revision {
		return auth.ErrOldRevision
	}
	return nil
}

// everyKey checks the sender's right to every key of a lease.
func (a access) everyKey(d *shard.Data, lease int64, right func(auth.Identity, []byte, []byte) error) error {
	if a.users.Admin(a.id) == nil {
		return nil
	}
	var err error
	d.EveryKey(lease, func(key []byte) bool {
		err = right(a.id, key, nil)
		return err == nil
	})
	return err
}
