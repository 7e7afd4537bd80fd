package client

import (
	"context"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
)

// Client opens sessions. Its methods may run side by side.
type Client struct {
	etcd  *clientv3.Client
	locks latchkeyv1.LocksClient
	clock clock
	// plain is set when the servers have turned out to have no lock service.
	plain atomic.Bool
}

// New returns a client over one of etcd's, which stays the caller's.
func New(etcd *clientv3.Client) *Client {
	return &Client{etcd: etcd, locks: latchkeyv1.NewLocksClient(etcd.ActiveConnection()), clock: systemClock}
}

// MinTTL is the shortest time to live of a session: servers grant whole seconds.
const MinTTL = time.Second

// Open opens a session with a time to live, in whole seconds; the server may grant more. The
// session is renewed until it is closed or the lease has ended.
func (c *Client) Open(ctx context.Context, ttl time.Duration) (*Session, error) {
	if ttl < MinTTL {
		return nil, ErrOption
	}
	sent := c.clock()
	resp, err := c.etcd.Grant(ctx, int64((ttl+time.Second-1)/time.Second))
	if err != nil {
		return nil, err
	}
	s := &Session{
		c: c, id: resp.ID, ttl: time.Duration(resp.TTL) * time.Second,
		slots: make(map[string]*slot),
	}
	s.life = newLifetime(c.clock, sent, s.ttl)
	s.start(s.renew)
	return s, nil
}
