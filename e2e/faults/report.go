package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/latchkey-db/latchkey/internal/etcdlog"
)

// Report collects what a run did and what was wrong.
type Report struct {
	Operations atomic.Int64

	mu         sync.Mutex
	faults     map[string]int
	violations []string
}

// Violation records a broken promise.
func (r *Report) Violation(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violations = append(r.violations, fmt.Sprintf(format, args...))
}

// Violations returns what was wrong.
func (r *Report) Violations() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.violations...)
}

func (r *Report) fault(kind string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.faults == nil {
		r.faults = make(map[string]int)
	}
	r.faults[kind]++
}

// Faults returns how many faults of each kind there were.
func (r *Report) Faults() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	faults := make(map[string]int)
	for kind, n := range r.faults {
		faults[kind] = n
	}
	return faults
}

// reconnect has clients find a node that has come back soon.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: time.Second},
	MinConnectTimeout: time.Second,
}

// Dial returns a client of some nodes.
func Dial(endpoints ...string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: etcdlog.New(slog.New(slog.DiscardHandler)),
		DialKeepAliveTime: 2 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(reconnect)},
	})
}

// DialEach returns a client of each node, and what closes them all.
func DialEach(c *Cluster) (clients []*clientv3.Client, done func() error, err error) {
	done = func() error {
		var errs []error
		for _, c := range clients {
			errs = append(errs, c.Close())
		}
		return errors.Join(errs...)
	}
	for _, endpoint := range c.Endpoints() {
		client, err := Dial(endpoint)
		if err != nil {
			return nil, done, errors.Join(err, done())
		}
		clients = append(clients, client)
	}
	return clients, done, nil
}

// attempt bounds one call of a workload: longer than a server lets a call wait.
const attempt = 10 * time.Second

// until calls fn until it returns true or an attempt has begun after ctx ended.
func until(ctx context.Context, fn func(ctx context.Context) bool) {
	for {
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), attempt)
		ok := fn(try)
		cancel()
		if ok || ctx.Err() != nil {
			return
		}
		sleep(ctx, 10*time.Millisecond)
	}
}

// check calls fn until it returns true, on a cluster that is whole. One that does not let it for
// long has broken a promise.
func (r *Report) check(ctx context.Context, what string, fn func(ctx context.Context) bool) {
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	done := false
	until(ctx, func(ctx context.Context) bool {
		done = fn(ctx)
		return done
	})
	if !done {
		r.Violation("%s can't be checked", what)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Workload is what clients do, and the check of what they saw.
type Workload interface {
	// Run works until ctx ends and returns when it has.
	Run(ctx context.Context)
	// Check is called when all workloads have returned and the cluster is whole.
	Check(ctx context.Context)
}
