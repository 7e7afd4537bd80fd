package mixed

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
	"github.com/latchkey-db/latchkey/e2e/faults"
)

// grpcParty calls the Locks service with a session that it keeps.
type grpcParty struct {
	lease
	conn   *clientv3.Client
	locks  latchkeyv1.LocksClient
	client string
	id     int64
	calls  int
	stop   context.CancelFunc
}

func openGRPC(ctx context.Context, e *env, nodes []string) (party, error) {
	c, err := faults.Dial(nodes[0])
	if err != nil {
		return nil, err
	}
	p := &grpcParty{conn: c, locks: latchkeyv1.NewLocksClient(c.ActiveConnection()), client: e.unique("grpc")}
	sent := time.Now()
	s, err := p.locks.OpenSession(ctx, &latchkeyv1.OpenSessionRequest{ClientId: p.client, TtlMs: ttl.Milliseconds()})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	p.id, p.e, p.name = s.SessionId, e, fmt.Sprintf("session %x", s.SessionId)
	p.ask = func(ctx context.Context, sent time.Time) (time.Time, error) {
		resp, err := p.locks.RenewSession(ctx, &latchkeyv1.RenewSessionRequest{SessionId: p.id})
		if status.Code(err) == codes.FailedPrecondition {
			return time.Time{}, errGone
		}
		return sent.Add(time.Duration(resp.GetTtlMs()) * time.Millisecond), err
	}
	p.until = sent.Add(time.Duration(s.TtlMs) * time.Millisecond)
	var keeping context.Context
	keeping, p.stop = context.WithCancel(context.Background())
	e.running.Go(func() { p.keep(keeping) })
	return p, nil
}

// grpcGrant is a lock of a gRPC party.
type grpcGrant struct {
	*grpcParty
	lock    string
	fencing int64
	at      time.Time
}

// acquire makes the same request again while the answer is lost, by a stream every other time.
func (p *grpcParty) acquire(ctx context.Context, lock string, m mode) (grant, error) {
	p.calls++
	r := &latchkeyv1.AcquireRequest{
		LockKey: lock, ClientId: p.client, RequestId: fmt.Sprint(p.calls), SessionId: p.id, BlockTimeMs: left(ctx).Milliseconds(),
		Permits: int32(m.permits), Of: int32(m.of),
	}
	if m.shared {
		r.Mode = latchkeyv1.Mode_SHARED
	}
	call := p.call
	if p.calls%2 == 0 {
		call = p.follow
	}
	for {
		resp, err := call(ctx, r)
		at := time.Now()
		switch {
		case err == nil && resp.Acquired:
			return &grpcGrant{p, lock, resp.Grants[0].FencingToken, at}, nil
		case err == nil:
			return nil, errNotGranted
		case status.Code(err) != codes.Unavailable:
			return nil, err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func (p *grpcParty) call(ctx context.Context, r *latchkeyv1.AcquireRequest) (*latchkeyv1.AcquireResponse, error) {
	return p.locks.Acquire(ctx, r)
}

// follow is call that hears of its position.
func (p *grpcParty) follow(ctx context.Context, r *latchkeyv1.AcquireRequest) (*latchkeyv1.AcquireResponse, error) {
	stream, err := p.locks.AcquireStream(ctx, r)
	if err != nil {
		return nil, err
	}
	for {
		step, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if resp := step.GetResponse(); resp != nil {
			return resp, nil
		}
	}
}

func (g *grpcGrant) token() int64    { return g.fencing }
func (g *grpcGrant) told() time.Time { return g.at }

func (g *grpcGrant) release(ctx context.Context) error {
	_, err := g.locks.Release(ctx, &latchkeyv1.ReleaseRequest{LockKey: g.lock, ClientId: g.client, FencingToken: g.fencing})
	if status.Code(err) == codes.FailedPrecondition {
		g.gone("had " + g.lock + " released")
	}
	return err
}

func (p *grpcParty) still() { p.stop() }

func (p *grpcParty) die() {
	p.stop()
	_ = p.conn.Close() // nothing is to be given back
}

func (p *grpcParty) leave(ctx context.Context) error {
	p.stop()
	_, err := p.locks.CloseSession(ctx, &latchkeyv1.CloseSessionRequest{SessionId: p.id})
	return errors.Join(err, p.conn.Close())
}
