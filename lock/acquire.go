package lock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"golang.org/x/sync/errgroup"

	"github.com/latchkey-db/latchkey/lock/queue"
)

// Grant is a lock that a client has.
type Grant struct {
	Place
	Life

	Name, Client string
	// Holds is how many acquires of the client the place is for.
	Holds int
	// Revision is that of the state in which the client has the lock.
	Revision int64
}

// NotGrantedError says that a lock was not given in time.
type NotGrantedError struct {
	// Queue is what was there when the call gave up. Position is how many were before it.
	Queue    Queue
	Position int
}

// Error tells the position.
func (e *NotGrantedError) Error() string { return "lock: not granted in time" }

var (
	// ErrOtherMode is returned to a client that has a place in the queue in another mode.
	ErrOtherMode = errors.New("lock: the client has a place in another mode")
	// ErrOtherClient is returned where the session has a place for another client, or by
	// another call.
	ErrOtherClient = errors.New("lock: the session has a place for another client")
)

// Acquire returns when the client has the lock. A NotGrantedError says that it was not its
// turn in time; ErrLost that its lease has ended meanwhile; a DeadlockError that its turn would
// never come. Whatever the error, the client has not left anything behind in the queue, unless there
// is no majority to say so.
func (s *Service) Acquire(ctx context.Context, r *Request) (*Grant, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	g, err := s.acquire(ctx, s.newTicket(r))
	return g, s.toCaller(ctx, err)
}

// acquire is Acquire by a ticket.
func (s *Service) acquire(ctx context.Context, t *ticket) (*Grant, error) {
	h, err := s.take(ctx, t)
	if err != nil {
		return nil, err
	}
	g, err := s.conclude(ctx, t, h)
	if err != nil {
		s.giveUp(ctx, t, h.Place)
		return nil, err
	}
	t.got = h
	s.granted.keep(h.wrote)
	return g, nil
}

// hold is a place that a request has.
type hold struct {
	Place

	// first says that nothing was before it, at revision rev, and made that its lease is new.
	first, made bool
	rev         int64
	// holds are the acquires that it is for, and guard is its guard, if it has one.
	holds int
	guard *queue.Guard
	// wrote is the place as the request has written it.
	wrote *known
	// began is when the lease was asked for, if it is new, with its time to live.
	began time.Time
	ttl   int64
}

// leases returns the leases that a place hangs on, with its guard's.
func (h *hold) leases() []int64 {
	if h.guard == nil {
		return []int64{h.Lease}
	}
	return []int64{h.Lease, h.guard.Lease}
}

// take gives a request its place: a new one, or that of its client.
func (s *Service) take(ctx context.Context, t *ticket) (*hold, error) {
	for {
		h, found, err := s.takeNew(ctx, t)
		if err != nil || found == nil {
			return h, err
		}
		h, err = s.joinPlace(ctx, t, found)
		if h != nil || err != nil {
			return h, err
		}
	}
}

// takeNew makes a new place, or finds the key that is there.
func (s *Service) takeNew(ctx context.Context, t *ticket) (_ *hold, found *mvccpb.KeyValue, err error) {
	h := &hold{began: s.now(), holds: 1}
	h.Lease = t.r.Session
	if h.Lease == 0 {
		granted, err := s.store.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds(t.r.TTL)})
		if err != nil {
			return nil, nil, err
		}
		h.Lease, h.ttl, h.made = granted.ID, granted.TTL, true
	}
	key := t.key(h.Lease)
	guard, err := s.guard(ctx, t, key)
	if err != nil {
		s.revoke(ctx, h.Lease)
		return nil, nil, err
	}
	e, err := s.enterAs(ctx, t.prefix, key, h.Lease, t.entry.Value(), guard...)
	switch {
	case (err != nil || e.found != nil) && h.made:
		// With the leases goes what may have been made all the same.
		s.revoke(ctx, h.Lease)
		s.revokeGuard(ctx, t.entry.Guard)
	case err != nil:
		s.giveUp(ctx, t, Place{Key: key})
	}
	if err != nil || e.found != nil {
		return nil, e.found, err
	}
	h.Place, h.first, h.rev, h.guard = e.Place, e.first, e.header.Revision, t.entry.Guard
	h.wrote = h.as(&t.entry)
	return h, nil, nil
}

// guard gives a request that wants one a guard, and returns what makes it.
func (s *Service) guard(ctx context.Context, t *ticket, key string) (made []*pb.RequestOp, err error) {
	if t.entry.Delay == 0 {
		return nil, nil
	}
	if t.entry.Guard, err = s.newGuard(ctx, &t.entry, key); err != nil {
		return nil, err
	}
	return []*pb.RequestOp{putGuard(t.entry.Guard)}, nil
}

// joinPlace notes a request in its client's place. It returns nothing if that has changed
// meanwhile.
func (s *Service) joinPlace(ctx context.Context, t *ticket, found *mvccpb.KeyValue) (*hold, error) {
	there := queue.EntryOf(found)
	switch {
	case there.Client != t.entry.Client, len(there.Calls) == 0:
		return nil, ErrOtherClient
	case !there.Alike(&t.entry):
		return nil, ErrOtherMode
	}
	there.Calls = with(there.Calls, t.entry.Calls[0])
	resp, err := s.rewrite(ctx, found, &there, found.Lease, s.first(t.prefix)...)
	if err != nil {
		s.giveUp(ctx, t, Place{Key: string(found.Key)})
		return nil, err
	}
	if !resp.Succeeded {
		return nil, nil
	}
	h := &hold{holds: len(there.Calls), guard: there.Guard, rev: resp.Header.Revision, first: isFirst(resp, found.CreateRevision)}
	h.Place = placeOf(found)
	h.wrote = h.as(&there)
	return h, nil
}

// as returns what a hold's place is after the request has written what it says at revision rev.
func (h *hold) as(says *Entry) *known {
	return &known{&mvccpb.KeyValue{Key: []byte(h.Key), CreateRevision: h.Token, ModRevision: h.rev, Lease: h.Lease}, *says}
}

// rewrite changes what a place says of itself, and its lease, if its key is still as it was
// found. more is asked beside.
func (s *Service) rewrite(
	ctx context.Context, found *mvccpb.KeyValue, says *Entry, lease int64, more ...*pb.RequestOp,
) (*pb.TxnResponse, error) {
	put := putOp(&pb.PutRequest{Key: found.Key, Value: says.Value(), Lease: lease})
	return s.store.Txn(ctx, &pb.TxnRequest{
		Compare: unchanged(found), Success: append([]*pb.RequestOp{put}, more...),
	})
}

// conclude waits for the turn of a place, and returns the grant.
func (s *Service) conclude(ctx context.Context, t *ticket, h *hold) (*Grant, error) {
	if h.first && h.made {
		return s.grant(t, h, h.began, h.ttl), nil
	}
	switch {
	case h.first:
		return s.renewed(ctx, t, h, nil)
	case t.r.Wait == 0:
		return s.atLast(ctx, t, h)
	case t.entry.Sharable():
		q, at, err := s.standing(ctx, t, h)
		if err != nil {
			return nil, err
		}
		if at.Holds {
			h.rev = q.Revision
			return s.renewed(ctx, t, h, nil)
		}
	}
	return s.awaitGrant(ctx, t, h)
}

// awaitGrant waits as long as the request says, and keeps a lease that is the service's
// alive meanwhile.
func (s *Service) awaitGrant(ctx context.Context, t *ticket, h *hold) (*Grant, error) {
	w := &waiter{key: h.Key, created: h.Token, client: t.r.Client, attempt: t.attempt, turn: make(chan turn, 1)}
	if t.r.Moved != nil {
		w.moved = make(chan Position, 1)
	}
	if h.guard == nil {
		w.soon = make(chan struct{}, 1)
	}
	leave, err := s.join(t.prefix, w)
	if err != nil {
		return nil, err
	}
	defer leave()
	var asking sync.WaitGroup
	defer asking.Wait()
	waiting, cancel := context.WithTimeout(ctx, t.r.Wait)
	defer cancel()
	var asked chan ahead
	turn, err := s.awaitTurn(waiting, t, h, w, func() {
		asked = make(chan ahead, 1)
		asking.Go(func() { s.askAhead(waiting, h.Place, asked) })
	})
	switch {
	case err == nil:
	case ctx.Err() == nil && waiting.Err() != nil:
		return s.atLast(ctx, t, h)
	default:
		return nil, err
	}
	h.rev = turn.rev
	if g, err := s.grantAhead(ctx, t, h, asked); g != nil || err != nil {
		return g, err
	}
	return s.renewed(ctx, t, h, func(ctx context.Context) error {
		header, err := s.prove(ctx, h.Place)
		if err == nil {
			h.rev = max(h.rev, header.Revision)
		}
		return err
	})
}

// awaitTurn returns the turn of a waiter. It keeps the leases that are the service's alive, and calls
// soon when only one is before the waiter.
func (s *Service) awaitTurn(ctx context.Context, t *ticket, h *hold, w *waiter, soon func()) (turn, error) {
	for {
		got, renew, err := awaitOrRenew(ctx, t, w, soon)
		if err != nil || !renew {
			return got, err
		}
		for _, lease := range slices.Concat(t.keep, h.leases()) {
			// What fails for another reason is tried again.
			if _, err := s.renewLease(ctx, lease); errors.Is(err, ErrLost) {
				return turn{}, err
			}
		}
	}
}

// awaitOrRenew returns the turn of a waiter, or that it is time to renew leases.
func awaitOrRenew(ctx context.Context, t *ticket, w *waiter, soon func()) (got turn, renew bool, err error) {
	renewal := ctx
	if t.entry.Own {
		var cancel context.CancelFunc
		renewal, cancel = context.WithTimeout(ctx, time.Duration(seconds(t.r.TTL))*time.Second/3)
		defer cancel()
	}
	for {
		select {
		case got := <-w.turn:
			return got, false, got.err
		case <-w.soon:
			soon()
		case p := <-w.moved:
			if p.Before != t.before {
				t.before = p.Before
				t.r.Moved(t.r.Name, p)
			}
		case <-renewal.Done():
			return turn{}, ctx.Err() == nil, ctx.Err()
		}
	}
}

// renewed renews the lease of a place whose turn has come, beside a proof of the place if
// there is one to make, and returns the grant.
func (s *Service) renewed(ctx context.Context, t *ticket, h *hold, proof func(context.Context) error) (*Grant, error) {
	began := s.now()
	var ttl int64
	g, proving := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		if ttl, err = s.renewLease(proving, h.Lease); err == nil {
			s.renewGuard(proving, h.guard)
		}
		return err
	})
	if proof != nil {
		g.Go(func() error { return proof(proving) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return s.grant(t, h, began, ttl), nil
}

// renewLease renews a lease and returns its time to live in seconds.
func (s *Service) renewLease(ctx context.Context, id int64) (ttl int64, err error) {
	resp, err := s.store.LeaseRenew(ctx, id)
	switch {
	case err != nil:
		return 0, err
	case resp.TTL <= 0:
		return 0, ErrLost
	default:
		return resp.TTL, nil
	}
}

func (s *Service) grant(t *ticket, h *hold, began time.Time, ttl int64) *Grant {
	return &Grant{
		Place: h.Place, Life: life(began, ttl), Name: t.r.Name, Client: t.r.Client, Holds: h.holds, Revision: h.rev,
	}
}

// atLast is the end of a call whose time is over: its turn may have come just then.
func (s *Service) atLast(ctx context.Context, t *ticket, h *hold) (*Grant, error) {
	q, at, err := s.standing(ctx, t, h)
	switch {
	case err != nil:
		return nil, err
	case !at.Holds:
		return nil, &NotGrantedError{Queue: *q, Position: at.Position}
	}
	h.rev = q.Revision
	return s.renewed(ctx, t, h, nil)
}

// standing reads the queue up to a place. ErrLost says that this is not there any more.
func (s *Service) standing(ctx context.Context, t *ticket, h *hold) (*Queue, *Standing, error) {
	q, err := s.read(ctx, t.r.Name, h.Token)
	if err != nil {
		return nil, nil, err
	}
	for i := range q.Places {
		if at := &q.Places[i]; at.Key == h.Key && at.Token == h.Token {
			return q, at, nil
		}
	}
	return nil, nil, ErrLost
}

// giveUp takes back a request that has failed, whose caller may be gone: with it goes the
// place, unless that is for others too.
func (s *Service) giveUp(ctx context.Context, t *ticket, p Place) {
	s.depart(ctx, func(ctx context.Context) { s.takeBack(ctx, t, p) })
}

func (s *Service) takeBack(ctx context.Context, t *ticket, p Place) {
	found := func() (*known, error) {
		kv, err := s.look(ctx, p.Key)
		if err != nil {
			return nil, err
		}
		return knownOf(kv), nil
	}
	err := s.change(ctx, found, func(e *Entry) error {
		calls, ok := without(e.Calls, t.attempt)
		if !ok {
			return errUnchanged
		}
		e.Calls = calls
		return nil
	})
	// Where the key could not be deleted it ends with its lease.
	if errors.Is(err, errAbsent) && t.entry.Own && p.Lease != 0 {
		s.revoke(ctx, p.Lease)
	}
}

// revoke ends a lease that the service has granted for a place that is no more.
func (s *Service) revoke(ctx context.Context, id int64) {
	// A lease that is left ends by itself.
	_, _ = s.store.LeaseRevoke(context.WithoutCancel(ctx), &pb.LeaseRevokeRequest{ID: id})
}
