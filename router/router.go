package router

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/internal/share"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/shard"
	"github.com/latchkey-db/latchkey/system"
)

// ErrSeveralShards is returned for a call whose keys lie on more shards than the
// call can be served from.
var ErrSeveralShards = errors.New("router: the keys of the call lie on several shards")

// errUnplaced is returned when the map names no shard, or one that has no
// replica here.
var errUnplaced = errors.New("no shard of this node owns the key")

// System is what the router asks of the system shard's state on this node. system.Cluster
// implements it.
type System interface {
	// State returns the newest state of the system shard that the node knows.
	State() *system.State
}

// Config is what a Router is made of.
type Config struct {
	// System says which shard owns what, and which users there are.
	System System
	// Order hands out revisions where there are several shards.
	Order Order
	// UserStore is where users and roles are kept.
	UserStore UserStore
	// Leaders finds leaders on other nodes; nil where there are none.
	Leaders Leaders
	// Self is this node's member id.
	Self uint64
	// Shards are the data shards with a replica on this node, by id. The Go map
	// is the router's from then on.
	Shards map[uint64]*shard.Data
	// WideWrites has writes over several shards be carried out.
	WideWrites bool
	// Timeout bounds every call that waits for a leader or for the log.
	Timeout time.Duration
	// Compactor gives disk space of removed records back.
	Compactor func(ctx context.Context) error
}

// Router serves the keyspace on this node. It implements what package api asks
// of the layers below.
type Router struct {
	system  System
	order   Order
	leaders Leaders
	self    uint64
	// wideWrites is Config.WideWrites.
	wideWrites bool
	userStore  UserStore
	// nobody is what there is of users where the system shard's state has none.
	nobody  *auth.State
	shards  map[uint64]*shard.Data
	timeout time.Duration
	compact func(ctx context.Context) error
	// promiser asks for what watches wait for.
	promiser *promiser
	// proofs are what calls on this node ask the leaders of shards together, by shard, and
	// newest what they ask the oracle.
	proofs map[uint64]*proofs
	newest share.Share[struct{}, raft.Block]
	// attempts are the transactions over several shards that this node coordinates.
	attempts attempts
	// running is the lifetime of what the router does of its own.
	running *lifetime
	// shown is the highest revision that clients have seen from this node.
	shown atomic.Int64
}

// New returns a router.
func New(c Config) *Router {
	r := &Router{
		system: c.System, order: c.Order, leaders: c.Leaders, self: c.Self, wideWrites: c.WideWrites, userStore: c.UserStore, nobody: auth.New(), shards: c.Shards, timeout: c.Timeout, compact: c.Compactor,
	}
	r.promiser, r.running = newPromiser(r), newLifetime()
	r.newest.Go, r.newest.Join = r.running.run, share.Same[struct{}]
	r.newest.Ask = func(ctx context.Context, _ struct{}) (raft.Block, error) {
		ctx, cancel := r.bounded(ctx)
		defer cancel()
		return r.order.Newest(ctx)
	}
	r.proofs = make(map[uint64]*proofs, len(r.shards))
	for id, d := range r.shards {
		r.proofs[id] = newProofs(r, d)
	}
	// This node may have shown what it holds before it was started anew. What it showed and
	// does not hold yet, serializable reads wait for.
	r.Revision()
	return r
}

// Resume has the node show no revision below one that it showed before its process was
// started anew: with several shards it may have shown one that no shard of its own holds.
func (r *Router) Resume(ctx context.Context) error {
	ordered := false
	for _, d := range r.shards {
		ordered = ordered || d.Shape().Ordered
	}
	if !ordered {
		return nil
	}
	ctx, cancel := r.bounded(ctx)
	defer cancel()
	now, err := r.newestNumber(ctx)
	if err != nil {
		return err
	}
	raiseTo(&r.shown, now.Newest)
	return nil
}

// Close ends what the router does of its own. The shards are still there.
func (r *Router) Close() { r.running.end() }

// span returns the shard that owns all keys of s. One without keys is anybody's: that is
// whoever owns its start.
func (r *Router) span(s keys.Span) (*shard.Data, error) {
	if s.Empty() {
		s = keys.Point(s.Start)
	}
	at := keys.Positions(s)
	d, err := r.only(r.system.State().Map.Locate(at.Start, at.End))
	if errors.Is(err, ErrSeveralShards) {
		err = r.wide(s, s)
	}
	return d, err
}

// lease returns the home of a lease.
func (r *Router) lease(id int64) (*shard.Data, error) {
	at := keys.LeasePositions(id)
	return r.only(r.system.State().Map.Locate(at.Start, at.End))
}

func (r *Router) only(pieces []placement.Piece) (*shard.Data, error) {
	if len(pieces) == 0 {
		return nil, errUnplaced
	}
	for _, p := range pieces[1:] {
		if p.Shard != pieces[0].Shard {
			return nil, ErrSeveralShards
		}
	}
	d := r.shards[pieces[0].Shard]
	if d == nil {
		return nil, fmt.Errorf("%w: shard %d", errUnplaced, pieces[0].Shard)
	}
	return d, nil
}

// whole returns the shard that owns the whole keyspace.
func (r *Router) whole() (*shard.Data, error) { return r.only(r.system.State().Map) }

// bounded gives a call the time that it may take. When it is over the outcome is
// etcd's timeout, not the client's.
func (r *Router) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, r.timeout, raft.ErrTimeout)
}
