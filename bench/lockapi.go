package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
	"github.com/latchkey-db/latchkey/client"
)

// longest is how long a call may wait for a lock.
const longest = time.Hour

var errNotAcquired = errors.New("the lock was not acquired")

// keep renews a session three times in its time to live, in seconds, until ctx ends.
func keep(ctx context.Context, ttl int, renew func() error) {
	t := time.NewTicker(time.Duration(ttl) * time.Second / 3)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			_ = renew() // a session that has ended shows by its lock
		case <-ctx.Done():
			return
		}
	}
}

// grpcSession is a session of the lock API by gRPC.
type grpcSession struct {
	locks latchkeyv1.LocksClient
	id    int64
}

func newGRPCSession(ctx context.Context, c *clientv3.Client, ttl int) (*grpcSession, error) {
	s := &grpcSession{locks: latchkeyv1.NewLocksClient(c.ActiveConnection())}
	opened, err := s.locks.OpenSession(ctx, &latchkeyv1.OpenSessionRequest{TtlMs: int64(ttl) * 1000})
	if err != nil {
		return nil, err
	}
	s.id = opened.SessionId
	go keep(ctx, ttl, func() error {
		_, err := s.locks.RenewSession(ctx, &latchkeyv1.RenewSessionRequest{SessionId: s.id})
		return err
	})
	return s, nil
}

func (s *grpcSession) lock(name string) locker { return &grpcLock{s, name, 0} }

// grpcLock is a lock of a session.
type grpcLock struct {
	*grpcSession
	name  string
	token int64
}

// Lock acquires it.
func (l *grpcLock) Lock(ctx context.Context) error {
	resp, err := l.locks.Acquire(ctx, &latchkeyv1.AcquireRequest{LockKey: l.name, SessionId: l.id, BlockTimeMs: longest.Milliseconds()})
	if err != nil {
		return err
	}
	if !resp.Acquired {
		return errNotAcquired
	}
	l.token = resp.Grants[0].FencingToken
	return nil
}

// Unlock releases it.
func (l *grpcLock) Unlock(ctx context.Context) error {
	_, err := l.locks.Release(ctx, &latchkeyv1.ReleaseRequest{LockKey: l.name, FencingToken: l.token})
	return err
}

// httpSession is a session of the lock API by HTTP.
type httpSession struct{ endpoint, id string }

// webClient keeps a connection for each call that is made at a time.
var webClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 10_000}}

// call makes a call of the lock API: a POST with a body, or a GET without one.
func call(ctx context.Context, endpoint, path string, body, answer any) error {
	method, text := http.MethodGet, []byte(nil)
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+endpoint+"/api/v1/"+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	resp, err := webClient.Do(req)
	if err != nil {
		return err
	}
	var said bytes.Buffer
	_, err = said.ReadFrom(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", path, resp.Status, said.Bytes())
	}
	return json.Unmarshal(said.Bytes(), answer)
}

func newHTTPSession(ctx context.Context, endpoint string, ttl int) (*httpSession, error) {
	var opened struct {
		ID string `json:"session_id"`
	}
	if err := call(ctx, endpoint, "sessions", map[string]any{"ttl_ms": ttl * 1000}, &opened); err != nil {
		return nil, err
	}
	go keep(ctx, ttl, func() error {
		return call(ctx, endpoint, "sessions/renew", map[string]any{"session_id": opened.ID}, &struct{}{})
	})
	return &httpSession{endpoint, opened.ID}, nil
}

func (s *httpSession) lock(name string) locker { return &httpLock{s, name, 0} }

// httpLock is a lock of a session.
type httpLock struct {
	*httpSession
	name  string
	token int64
}

// Lock acquires it.
func (l *httpLock) Lock(ctx context.Context) error {
	var granted struct {
		Token int64 `json:"fencing_token"`
	}
	err := call(ctx, l.endpoint, "locks/acquire",
		map[string]any{"lock_key": l.name, "session_id": l.id, "block_time_ms": longest.Milliseconds()}, &granted)
	l.token = granted.Token
	return err
}

// Unlock releases it.
func (l *httpLock) Unlock(ctx context.Context) error {
	return call(ctx, l.endpoint, "locks/release", map[string]any{"lock_key": l.name, "fencing_token": l.token}, &struct{}{})
}

// clientLock is a lock of package client.
type clientLock struct {
	session *client.Session
	name    string
	grant   *client.Grant
}

func newClientSession(ctx context.Context, c *clientv3.Client, ttl int) (*client.Session, error) {
	s, err := client.New(c).Open(ctx, time.Duration(ttl)*time.Second)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = s.Close(ctx) }) // only what it has running ends
	return s, nil
}

// Lock acquires it.
func (l *clientLock) Lock(ctx context.Context) (err error) {
	l.grant, err = l.session.Acquire(ctx, l.name)
	return err
}

// Unlock releases it.
func (l *clientLock) Unlock(ctx context.Context) error { return l.grant.Release(ctx) }
