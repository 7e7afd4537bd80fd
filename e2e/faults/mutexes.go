package faults

import (
	"context"
	"errors"
	"maps"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc/status"
)

// Mutexes has clients pass locks round with the recipe of etcd's client, and keeps what
// errors they saw. No session may end, no lock have two holders, and each holder's fencing token, the
// revision that its key was created at, is higher than the one before.
type Mutexes struct {
	report  *Report
	clients []*clientv3.Client
	locks   []*mutexLock

	mu sync.Mutex
	// errs counts the errors seen, by code and text; protected by mu.
	errs map[string]int
}

type mutexLock struct {
	name   string
	inside atomic.Int32
	// token is the last holder's.
	token atomic.Int64
}

// mutexTTL is that of the sessions, in seconds: longer than nodes take to restart.
const mutexTTL = 20

// NewMutexes returns a workload of some locks, for each of which all clients contend.
func NewMutexes(r *Report, locks int, clients []*clientv3.Client) *Mutexes {
	m := &Mutexes{report: r, clients: clients, errs: make(map[string]int)}
	for i := range locks {
		m.locks = append(m.locks, &mutexLock{name: chainKey(i) + "/mutex"})
	}
	return m
}

// Errors returns the errors that clients have seen, without what differs from run to run.
func (m *Mutexes) Errors() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.errs))
}

// addresses are what differs from run to run in errors of connections.
var addresses = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+(:\d+)?`)

// note keeps an error that the end of the work did not cause.
func (m *Mutexes) note(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	s := status.Convert(err)
	var known rpctypes.EtcdError
	text := s.Code().String() + ": " + s.Message()
	if errors.As(err, &known) {
		text = known.Code().String() + ": " + known.Error()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.errs[addresses.ReplaceAllString(text, "ADDRESS")]++
}

// Run passes the locks round.
func (m *Mutexes) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for i, client := range m.clients {
		for j := range m.locks {
			lock := m.locks[(i+j)%len(m.locks)]
			wg.Go(func() { m.contend(ctx, client, lock) })
		}
	}
	wg.Wait()
}

func (m *Mutexes) contend(ctx context.Context, client *clientv3.Client, lock *mutexLock) {
	var session *concurrency.Session
	until(ctx, func(try context.Context) bool {
		var err error
		g, err := client.Grant(try, mutexTTL)
		if err == nil {
			session, err = concurrency.NewSession(client, concurrency.WithLease(g.ID))
		}
		m.note(ctx, err)
		return err == nil
	})
	if session == nil {
		return
	}
	defer func() { _ = session.Close() }() // its lease would end by itself
	for ctx.Err() == nil {
		m.turn(ctx, session, lock)
		select {
		case <-session.Done():
			m.report.Violation("the session of a client of %s ended", lock.name)
			return
		default:
		}
	}
}

// turn takes the lock, writes under it and gives it back.
func (m *Mutexes) turn(ctx context.Context, s *concurrency.Session, lock *mutexLock) {
	mutex := concurrency.NewMutex(s, lock.name)
	try, cancel := context.WithTimeout(ctx, attempt)
	err := mutex.Lock(try)
	cancel()
	if m.note(ctx, err); err != nil {
		return
	}
	if n := lock.inside.Add(1); n != 1 {
		m.report.Violation("%s has %d holders", lock.name, n)
	}
	try, cancel = context.WithTimeout(ctx, attempt)
	resp, err := s.Client().Txn(try).If(mutex.IsOwner()).Then(clientv3.OpPut(lock.name+"-guarded", ""), clientv3.OpGet(mutex.Key())).Commit()
	cancel()
	m.note(ctx, err)
	switch {
	case err != nil:
	case !resp.Succeeded:
		m.report.Violation("%s was lost by its holder", lock.name)
	default:
		token := resp.Responses[1].GetResponseRange().Kvs[0].CreateRevision
		if last := lock.token.Swap(token); token < last { // the same holder may take it again
			m.report.Violation("%s: token %d after %d", lock.name, token, last)
		}
	}
	sleep(ctx, time.Millisecond)
	lock.inside.Add(-1)
	// A lock that was not given back stays with the session.
	until(ctx, func(try context.Context) bool {
		err := mutex.Unlock(try)
		m.note(ctx, err)
		return err == nil
	})
	m.report.Operations.Add(1)
}

// Check has nothing to add: what is wrong shows while it happens.
func (*Mutexes) Check(context.Context) {}
