package mixed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"

	"github.com/latchkey-db/latchkey/e2e/faults"
)

// etcdLease is a lease of etcd's API, and the client that has it.
type etcdLease struct {
	lease
	c  *clientv3.Client
	id clientv3.LeaseID
}

func newEtcdLease(e *env, c *clientv3.Client, id clientv3.LeaseID) *etcdLease {
	l := &etcdLease{c: c, id: id}
	l.e, l.name = e, fmt.Sprintf("lease %x", int64(id))
	l.ask = func(ctx context.Context, sent time.Time) (time.Time, error) {
		resp, err := c.KeepAliveOnce(ctx, id)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return time.Time{}, errGone
		}
		if err != nil {
			return time.Time{}, err
		}
		return sent.Add(time.Duration(resp.TTL) * time.Second), nil
	}
	return l
}

// grantLease dials a node and grants a lease.
func grantLease(ctx context.Context, e *env, node string) (*etcdLease, error) {
	c, err := faults.Dial(node)
	if err != nil {
		return nil, err
	}
	sent := time.Now()
	resp, err := c.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	l := newEtcdLease(e, c, resp.ID)
	l.until = sent.Add(time.Duration(resp.TTL) * time.Second)
	return l, nil
}

// leasedGrant is a lock that lasts with a lease.
type leasedGrant struct {
	*etcdLease
	created int64
	at      time.Time
	give    func(ctx context.Context) error
}

func (g *leasedGrant) token() int64                      { return g.created }
func (g *leasedGrant) told() time.Time                   { return g.at }
func (g *leasedGrant) release(ctx context.Context) error { return g.give(ctx) }

// mutex is etcd's recipe in its client.
type mutex struct {
	*etcdLease
	s *concurrency.Session
}

func openMutex(ctx context.Context, e *env, nodes []string) (party, error) {
	l, err := grantLease(ctx, e, nodes[0])
	if err != nil {
		return nil, err
	}
	s, err := concurrency.NewSession(l.c, concurrency.WithLease(l.id))
	if err != nil {
		return nil, errors.Join(err, l.c.Close())
	}
	return &mutex{l, s}, nil
}

func (p *mutex) acquire(ctx context.Context, lock string, _ mode) (grant, error) {
	m := concurrency.NewMutex(p.s, lock)
	if err := m.Lock(ctx); err != nil {
		return nil, err
	}
	at := time.Now()
	mine := m.IsOwner()
	// The recipe tells its create revision in no other way.
	token := mine.GetCompare().GetCreateRevision()
	return &leasedGrant{p.etcdLease, token, at, m.Unlock}, nil
}

func (p *mutex) still() { p.s.Orphan() }

func (p *mutex) die() { _ = p.c.Close() } // nothing is to be given back

func (p *mutex) leave(ctx context.Context) error {
	p.s.Orphan()
	_, err := p.c.Revoke(ctx, p.id)
	return errors.Join(err, p.c.Close())
}

// lockCall is etcd's Lock RPC, with a lease that the caller keeps.
type lockCall struct {
	*etcdLease
	stop context.CancelFunc
}

func openLockCall(ctx context.Context, e *env, nodes []string) (party, error) {
	l, err := grantLease(ctx, e, nodes[0])
	if err != nil {
		return nil, err
	}
	keeping, stop := context.WithCancel(context.Background())
	e.running.Go(func() { l.keep(keeping) })
	return &lockCall{l, stop}, nil
}

func (p *lockCall) acquire(ctx context.Context, lock string, _ mode) (grant, error) {
	calls := v3lockpb.NewLockClient(p.c.ActiveConnection())
	resp, err := calls.Lock(ctx, &v3lockpb.LockRequest{Name: []byte(lock), Lease: int64(p.id)})
	if err != nil {
		return nil, err
	}
	at := time.Now()
	// The answer does not tell the key's create revision.
	kv, err := p.c.Get(ctx, string(resp.Key))
	if err != nil {
		return nil, err
	}
	if len(kv.Kvs) == 0 {
		p.gone("had " + lock)
		return nil, errGone
	}
	return &leasedGrant{p.etcdLease, kv.Kvs[0].CreateRevision, at, func(ctx context.Context) error {
		_, err := calls.Unlock(ctx, &v3lockpb.UnlockRequest{Key: resp.Key})
		return err
	}}, nil
}

func (p *lockCall) still() { p.stop() }

func (p *lockCall) die() {
	p.stop()
	_ = p.c.Close() // nothing is to be given back
}

func (p *lockCall) leave(ctx context.Context) error {
	p.stop()
	_, err := p.c.Revoke(ctx, p.id)
	return errors.Join(err, p.c.Close())
}
