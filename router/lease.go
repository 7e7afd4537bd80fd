package router

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/errgroup"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/shard"
)

// LeaseGrant grants a lease; an id of 0 lets the server pick one.
func (r *Router) LeaseGrant(ctx context.Context, req *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	if req.ID != 0 {
		return r.grant(ctx, req.ID, req.TTL)
	}
	for {
		resp, err := r.grant(ctx, r.pickLease(), req.TTL)
		if !errors.Is(err, lease.ErrExists) {
			return resp, err
		}
	}
}

// maxDraws bounds how often an id is drawn for a home that this node leads. Where it leads
// a tenth of the shards, one in a thousand leases gets another home.
const maxDraws = 64

// pickLease draws an id that clients can keep in a signed number. Its home is one that
// this node leads, if there is one: renewals then need no other node.
func (r *Router) pickLease() int64 {
	for draw := 1; ; draw++ {
		id := 1 + rand.Int64N(1<<63-1)
		d, err := r.lease(id)
		if draw == maxDraws || err == nil && d.Replica().Serving() != 0 {
			return id
		}
	}
}

func (r *Router) grant(ctx context.Context, id, ttl int64) (*pb.LeaseGrantResponse, error) {
	d, err := r.lease(id)
	if err != nil {
		return nil, err
	}
	c := command{kind: shard.KindLeaseGrant, request: &pb.LeaseGrantRequest{ID: id, TTL: ttl}}
	for {
		issued, err := r.issued(ctx, d)
		if err != nil {
			return nil, err
		}
		resp, err := write[*pb.LeaseGrantResponse](ctx, r, d, c)
		if errors.Is(err, lease.ErrEnding) {
			if err := r.awaitEnded(ctx, d, id); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		resp.Header.Revision = max(resp.Header.Revision, issued)
		r.noteShown(resp.Header)
		return resp, nil
	}
}

// issued returns a revision for the header of a call that has no number of its own, if
// several shards share the order of revisions; 0 where the shard of the call counts by
// itself, and its answer has the revision. It is not below that of any change that was
// acknowledged before, and below that of every change that begins later: asked for before
// the call takes effect, it is of that moment.
func (r *Router) issued(ctx context.Context, d *shard.Data) (int64, error) {
	if !d.Shape().Ordered {
		return 0, nil
	}
	ctx, cancel := r.bounded(ctx)
	defer cancel()
	now, err := r.newestNumber(ctx)
	return now.Newest, err
}

// awaitEnded waits until the lease whose end is under way is gone.
func (r *Router) awaitEnded(ctx context.Context, d *shard.Data, id int64) error {
	return r.atLeader(ctx, d, func(ctx context.Context, l Leader) error { return l.AwaitEnded(ctx, id) })
}

// LeaseRevoke ends a lease and deletes its keys.
func (r *Router) LeaseRevoke(ctx context.Context, req *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	d, err := r.lease(req.ID)
	if err != nil {
		return nil, err
	}
	a, err := r.access(ctx)
	if err != nil {
		return nil, err
	}
	if d.Shape().Ordered && r.EndsTogether() {
		resp, err := r.revokeTogether(ctx, a, d, req.ID)
		if errors.Is(err, lease.ErrEnding) {
			// It has expired, and was there first.
			if err := r.awaitEnded(ctx, d, req.ID); err != nil {
				return nil, err
			}
			err = lease.ErrNotFound
		}
		return resp, err
	}
	if err := r.mayUse(ctx, a, d, req.ID); err != nil {
		return nil, err
	}
	resp, err := write[shard.Revoked](ctx, r, d, a.command(shard.KindLeaseRevoke, req, req.ID))
	switch {
	case errors.Is(err, lease.ErrEnding):
		// Somebody else's end was there first.
		if err := r.awaitEnded(ctx, d, req.ID); err != nil {
			return nil, err
		}
		return nil, lease.ErrNotFound
	case err != nil:
		return nil, err
	case !resp.Ending:
		return resp.LeaseRevokeResponse, nil
	}
	if err := r.awaitEnded(ctx, d, req.ID); err != nil {
		return nil, err
	}
	// Each shard has deleted its keys at a revision of its own, all up to this one.
	if resp.Header.Revision, err = r.issued(ctx, d); err != nil {
		return nil, err
	}
	r.noteShown(resp.Header)
	return resp.LeaseRevokeResponse, nil
}

// LeaseRenew renews a lease at the moment of the call.
func (r *Router) LeaseRenew(ctx context.Context, id int64) (*pb.LeaseKeepAliveResponse, error) {
	d, err := r.lease(id)
	if err != nil {
		return nil, err
	}
	a, err := r.access(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.everyKey(ctx, a, d, id, a.users.Write); err != nil {
		return nil, err
	}
	resp := &pb.LeaseKeepAliveResponse{Header: r.header(), ID: id}
	err = r.atLeader(ctx, d, func(ctx context.Context, l Leader) error {
		resp.TTL, err = l.Renew(ctx, id)
		return err
	})
	return resp, err
}

// LeaseRenewAhead renews a lease at the moment of the call, if its home has a key too, and leaves the proof to what
// that shard applies later: proved answers a range request as RangeInShard does once something was proposed there after
// the call and has applied here, and nothing before. It shows every change that was acknowledged before
// LeaseRenewAhead was called. A ttl of 0 says that nothing was renewed, for whatever reason.
func (r *Router) LeaseRenewAhead(ctx context.Context, id int64, key []byte) (
	ttl int64, proved func(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error), err error,
) {
	d, err := r.lease(id)
	if err != nil {
		return 0, nil, err
	}
	if owner, err := r.span(keys.Point(key)); err != nil || owner != d {
		return 0, nil, err
	}
	a, err := r.access(ctx)
	if err != nil {
		return 0, nil, err
	}
	if err := r.everyKey(ctx, a, d, id, a.users.Write); err != nil {
		return 0, nil, err
	}
	var ahead shard.Ahead
	err = r.atLeader(ctx, d, func(ctx context.Context, l Leader) error {
		ahead, err = l.RenewAhead(ctx, id)
		return err
	})
	passed := func(_ context.Context, at *shard.Data) error {
		if at != d || !d.Replica().Passed(ahead.Mark) {
			return errNotPassed
		}
		return nil
	}
	return ahead.TTL, func(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
		resp, err := r.rangeInShard(ctx, req, passed)
		if errors.Is(err, errNotPassed) {
			return nil, nil
		}
		return resp, err
	}, err
}

// errNotPassed says that nothing was applied that proves an earlier renewal.
var errNotPassed = errors.New("nothing has applied that was proposed since")

// LeaseTimeToLive tells what a lease has left, and its keys if asked. There being
// no such lease is lease.ErrNotFound.
func (r *Router) LeaseTimeToLive(ctx context.Context, req *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	d, err := r.lease(req.ID)
	if err != nil {
		return nil, err
	}
	a, err := r.access(ctx)
	if err != nil {
		return nil, err
	}
	header := r.header()
	life, rev, err := r.life(ctx, d, req)
	if err != nil {
		return nil, err
	}
	if req.Keys {
		if err := r.mayHear(ctx, a, d, life.Keys); err != nil {
			return nil, err
		}
	}
	header.Revision = max(header.Revision, rev)
	r.noteShown(header)
	return &pb.LeaseTimeToLiveResponse{
		Header:     header,
		ID:         req.ID,
		TTL:        int64(life.Remaining / time.Second),
		GrantedTTL: life.TTL,
		Keys:       life.Keys,
	}, nil
}

// life asks a lease's home for what the lease has left, and all shards that may have
// keys of it for those. The keys are those of one revision; which shards may have some
// is asked once that is in hand, so that none is missed. rev is the revision, 0 where only
// the home was asked.
func (r *Router) life(ctx context.Context, d *shard.Data, req *pb.LeaseTimeToLiveRequest) (life shard.LeaseLife, rev int64, err error) {
	ctx, cancel := r.bounded(ctx)
	defer cancel()
	ordered := d.Shape().Ordered
	for {
		before, err := r.lifeAtHome(ctx, d, req.ID, req.Keys && !ordered)
		if err != nil || !req.Keys || !ordered {
			return before, 0, err
		}
		now, err := r.newestNumber(ctx)
		if err != nil {
			return before, 0, err
		}
		life, err := r.lifeAtHome(ctx, d, req.ID, false)
		if err != nil {
			return life, 0, err
		}
		if life.Incarnation != before.Incarnation {
			continue
		}
		life.Keys, err = r.attachedKeys(ctx, d, life, now.Newest)
		if !errors.Is(err, errMoved) && !errors.Is(err, mvcc.ErrReplaced) {
			return life, now.Newest, err
		}
	}
}

// lifeAtHome asks a lease's home alone.
func (r *Router) lifeAtHome(ctx context.Context, d *shard.Data, id int64, keys bool) (life shard.LeaseLife, err error) {
	for {
		found := false
		err = r.atLeader(ctx, d, func(ctx context.Context, l Leader) error {
			life, found, err = l.TimeToLive(ctx, id, keys)
			return err
		})
		switch {
		case errors.Is(err, lease.ErrEnding):
			if err := r.awaitEnded(ctx, d, id); err != nil {
				return life, err
			}
		case err == nil && !found:
			return life, lease.ErrNotFound
		default:
			return life, err
		}
	}
}

// attachedKeys returns the keys that hang on a lease at revision rev, in order.
func (r *Router) attachedKeys(ctx context.Context, d *shard.Data, life shard.LeaseLife, rev int64) ([][]byte, error) {
	holders := []reading{{d: d}}
	for _, id := range life.Holders {
		if h := r.shards[id]; h != nil {
			holders = append(holders, reading{d: h})
		}
	}
	if err := r.promise(ctx, holders, rev); err != nil {
		return nil, err
	}
	var all [][]byte
	for _, h := range holders {
		attached, err := h.d.AttachedAt(ctx, life.ID, rev)
		switch {
		case errors.Is(err, mvcc.ErrCompacted):
			return nil, errMoved
		case err != nil:
			return nil, err
		}
		all = append(all, attached...)
	}
	slices.SortFunc(all, bytes.Compare)
	return all, nil
}

// holders returns the home of a lease and the other shards of this node that may have
// keys of it.
func (r *Router) holders(home *shard.Data, id int64) []*shard.Data {
	holders := []*shard.Data{home}
	for _, shardID := range home.Holders(id) {
		if d := r.shards[shardID]; d != nil {
			holders = append(holders, d)
		}
	}
	return holders
}

// everyKey checks the sender's right to every key of a lease that was attached before the
// call, wherever it lies. That the users and roles are those of now is proved too, since
// nothing else in the call does.
func (r *Router) everyKey(ctx context.Context, a access, home *shard.Data, id int64, right func(auth.Identity, []byte, []byte) error) error {
	if !a.users.Enabled {
		return r.holdsOnAll(a)
	}
	if err := r.confirm(ctx, home); err != nil {
		return err
	}
	if a.users.Admin(a.id) != nil {
		if err := r.everyKeyOf(ctx, a, home, id, right); err != nil {
			return err
		}
	}
	return r.holdsOnAll(a)
}

// everyKeyOf is everyKey behind a proof that this node's replica of the home is the newest:
// so are the shards that it names.
func (r *Router) everyKeyOf(ctx context.Context, a access, home *shard.Data, id int64, right func(auth.Identity, []byte, []byte) error) error {
	holders := r.holders(home, id)
	g, confirming := errgroup.WithContext(ctx)
	for _, d := range holders {
		if d != home {
			g.Go(func() error { return r.confirm(confirming, d) })
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, d := range holders {
		if err := a.everyKey(d, id, right); err != nil {
			return err
		}
	}
	return nil
}

// mayUse checks the sender's right to use leases in a command for d: all that hangs on
// them elsewhere must be the sender's to write. What hangs on them in d, and that users and
// roles have not changed, is checked where the command applies.
func (r *Router) mayUse(ctx context.Context, a access, d *shard.Data, leases ...int64) error {
	if !d.Shape().Ordered || a.users.Admin(a.id) == nil {
		return nil
	}
	for _, id := range leases {
		home, err := r.lease(id)
		if err != nil {
			return err
		}
		if err := r.confirm(ctx, home); err != nil {
			return err
		}
		err = r.everyKeyOf(ctx, a, home, id, func(id auth.Identity, key, end []byte) error {
			if a.users.Write(id, key, end) != nil {
				return a.users.Refusal(id)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

var _ shard.OtherShards = (*Router)(nil)

// Register has the home of a lease note that a shard may have keys of it.
func (r *Router) Register(ctx context.Context, id int64, shardID uint64) (incarnation uint64, err error) {
	home, err := r.lease(id)
	if err != nil {
		return 0, err
	}
	err = r.atLeader(ctx, home, func(ctx context.Context, l Leader) error {
		incarnation, err = l.Register(ctx, id, shardID)
		return err
	})
	if errors.Is(err, lease.ErrEnding) {
		return 0, lease.ErrNotFound
	}
	return incarnation, err
}

// Drop has a shard delete its keys of leases whose end is decided.
func (r *Router) Drop(ctx context.Context, shardID uint64, ended []lease.Ref) error {
	d := r.shards[shardID]
	if d == nil {
		return errUnplaced
	}
	return r.atLeader(ctx, d, func(ctx context.Context, l Leader) error { return l.Drop(ctx, ended) })
}

// mayHear reports whether the sender may hear of the keys of a lease, which were looked up
// before the call.
func (r *Router) mayHear(ctx context.Context, a access, home *shard.Data, keys [][]byte) error {
	if a.users.Enabled {
		// A promise proves which keys there are, not which fences.
		if err := r.confirm(ctx, home); err != nil {
			return err
		}
	}
	if a.users.Admin(a.id) != nil {
		for _, key := range keys {
			if err := a.users.Read(a.id, key, nil); err != nil {
				return err
			}
		}
	}
	return r.holdsOnAll(a)
}

// LeaseLeases lists all leases by id, to those who may read all keys of all leases.
func (r *Router) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	resp := &pb.LeaseLeasesResponse{Header: r.header()}
	g, confirming := errgroup.WithContext(ctx)
	for _, d := range r.shards {
		g.Go(func() error { return r.confirm(confirming, d) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	a, err := r.access(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range r.shards {
		for _, rec := range d.Leases() {
			if rec.Ending {
				continue
			}
			for _, holder := range r.holders(d, rec.ID) {
				if err := a.everyKey(holder, rec.ID, a.users.Read); err != nil {
					return nil, err
				}
			}
			resp.Leases = append(resp.Leases, &pb.LeaseStatus{ID: rec.ID})
		}
	}
	if err := r.holdsOnAll(a); err != nil {
		return nil, err
	}
	slices.SortFunc(resp.Leases, func(a, b *pb.LeaseStatus) int { return cmp.Compare(a.ID, b.ID) })
	return resp, nil
}

// header is that of an answer that changes nothing: a revision that this node knows, taken
// before the call is carried out.
func (r *Router) header() *pb.ResponseHeader { return &pb.ResponseHeader{Revision: r.Revision()} }
