// Command bench drives any etcd endpoint with one kind of work at a time and
// prints how many operations a second it did and how long they took:
//
//	go run ./bench -endpoints 127.0.0.1:2379 -work put -clients 64 -for 10s
//
// Kinds of work (-work):
//
//	put        each client writes keys of its own; with -among n every n-th time -over of them
//	           in a transaction instead, which is not counted
//	txn        each client writes -over keys in a transaction, each in another part of the keyspace
//	get        each client reads one of -keys keys, linearizably
//	bulk       each client writes -batch keys of its own in a transaction
//	range      each client reads all of -keys keys in one range, or -limit of them, or
//	           with -past as they were before each was written anew
//	lock       each client locks and unlocks a lock of its own
//	handoff    the clients take turns at -locks locks; an operation is one hand-off,
//	           its time from the call of Unlock to the return of the next holder's Lock
//	waiters    all clients but one wait for a lock; then it passes through them, once
//	held       the clients acquire -keys locks together, and keep them for a long time
//	list       each client lists -limit locks at a time, of all that are held
//	grant      each client grants leases
//	leases     the clients grant -keys leases together and attach a key to each, and end
//	keepalive  each client renews a lease of its own, with a stream for each renewal
//	renew      the same on one stream that stays open
//	fanout     one client writes a key that all the others watch; an operation is
//	           one event delivered, its time from the write to the delivery
//	events     the same with keys all over the keyspace, and watches of all of it
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/latchkey-db/latchkey/internal/etcdlog"
)

// options are the command line.
type options struct {
	endpoints []string
	store     string
	work      string
	clients   int
	conns     int
	keys      int
	valueSize int
	batch     int
	locks     int
	over      int
	among     int
	limit     int64
	past      bool
	every     time.Duration
	duration  time.Duration
	warmup    time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		}
		os.Exit(2)
	}
}

func parse(args []string, out io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(out)
	endpoints := f.String("endpoints", "127.0.0.1:2379", "comma-separated `addresses` of the servers")
	f.StringVar(&o.store, "store", stores[0], "`protocol` of the servers for locks: "+strings.Join(stores, ", "))
	f.StringVar(&o.work, "work", "put", "kind of `work`: "+strings.Join(workNames(), ", "))
	f.IntVar(&o.clients, "clients", 64, "`number` of clients that work side by side")
	f.IntVar(&o.conns, "conns", 8, "`number` of connections that they share")
	f.IntVar(&o.keys, "keys", 10_000, "`number` of keys to read, or of leases")
	f.IntVar(&o.valueSize, "value", 128, "size of a value in `bytes`")
	f.IntVar(&o.batch, "batch", 100, "`number` of keys in a transaction")
	f.IntVar(&o.locks, "locks", 1, "`number` of locks that the clients share")
	f.IntVar(&o.over, "over", 2, "`number` of equal parts of the keyspace over which a transaction's keys lie")
	f.IntVar(&o.among, "among", 0, "`number` of writes of a client of which one is a transaction, 0 for none")
	f.Int64Var(&o.limit, "limit", 0, "`number` of keys that a range asks for, 0 for all")
	f.BoolVar(&o.past, "past", false, "read at a past revision")
	f.DurationVar(&o.every, "every", 0, "`time` from one write that is watched to the next, 0 for none")
	f.DurationVar(&o.duration, "for", 10*time.Second, "how long to measure")
	f.DurationVar(&o.warmup, "warmup", time.Second, "how long to run before")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.endpoints = strings.Split(*endpoints, ",")
	if _, ok := works[o.work]; !ok {
		return o, fmt.Errorf("unknown work %q", o.work)
	}
	with := worksWith[o.store]
	if !slices.Contains(stores, o.store) || with != nil && !slices.Contains(with, o.work) {
		return o, fmt.Errorf("no %s with %q", o.work, o.store)
	}
	if min(o.clients, o.conns, o.keys, o.batch, o.locks, o.over) < 1 || min(o.valueSize, o.among) < 0 || o.limit < 0 || o.duration <= 0 {
		return o, errors.New("clients, conns, keys, batch, locks, over and for must be positive")
	}
	return o, nil
}

// endpointsOf returns the servers that a connection uses. It stays with one, so that the
// load spreads evenly; where there are fewer clients than servers each call goes to the
// next server, so that no figure hangs on who leads.
func (o options) endpointsOf(conn int) []string {
	if o.clients < len(o.endpoints) {
		return o.endpoints
	}
	return o.endpoints[conn%len(o.endpoints):][:1]
}

// dial returns connections, all nil for protocols that have their own.
func (o options) dial() (conns []*clientv3.Client, hangUp func(), err error) {
	conns = make([]*clientv3.Client, o.conns)
	hangUp = func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	}
	if slices.Contains(ofOthers, o.store) {
		return conns, hangUp, nil
	}
	for i := range conns {
		conns[i], err = clientv3.New(clientv3.Config{
			Endpoints: o.endpointsOf(i), DialTimeout: 5 * time.Second, Logger: etcdlog.New(slog.New(slog.DiscardHandler)),
		})
		if err != nil {
			return conns, hangUp, fmt.Errorf("dial: %w", err)
		}
	}
	return conns, hangUp, nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	conns, hangUp, err := o.dial()
	defer hangUp()
	if err != nil {
		return err
	}
	do, err := works[o.work](ctx, o, conns)
	if err != nil {
		return err
	}
	m := &meter{}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, o.warmup+o.duration)
	defer cancel()
	time.AfterFunc(o.warmup, func() {
		m.start()
		// Whoever measures the servers begins now, too. The report tells if nobody can be told.
		_, _ = fmt.Fprintln(out, "measuring")
	})
	if err := do(ctx, m); err != nil && ctx.Err() == nil {
		return err
	}
	return m.report(out, o, min(time.Since(begin)-o.warmup, o.duration))
}

// each returns the work of running fn once for every client, side by side, until the
// first error.
func each(o options, conns []*clientv3.Client, fn func(ctx context.Context, i int, c *clientv3.Client, m *meter) error) work {
	return func(ctx context.Context, m *meter) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		var wg sync.WaitGroup
		for i := range o.clients {
			wg.Go(func() {
				if err := fn(ctx, i, conns[i%len(conns)], m); err != nil && !ended(err) {
					cancel(err)
				}
			})
		}
		wg.Wait()
		if err := context.Cause(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return nil
	}
}

// forEach returns what fn returns for every client. It is for what work needs beforehand.
func forEach[T any](ctx context.Context, o options, conns []*clientv3.Client, fn func(i int, c *clientv3.Client) (T, error)) ([]T, error) {
	all := make([]T, o.clients)
	err := each(o, conns, func(_ context.Context, i int, c *clientv3.Client, _ *meter) (err error) {
		all[i], err = fn(i, c)
		return err
	})(ctx, nil)
	return all, err
}

// ended reports whether an operation failed because the time was over. gRPC keeps
// time by a clock of its own, and may say so before the context does.
func ended(err error) bool {
	code := status.Code(err)
	return code == codes.DeadlineExceeded || code == codes.Canceled ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// meter collects the times of operations.
type meter struct {
	mu sync.Mutex
	// on is set when the warm-up is over; protected by mu, as times is.
	on    bool
	times []time.Duration
}

func (m *meter) start() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.on = true
}

// add counts one operation that began at start.
func (m *meter) add(start time.Time) {
	d := time.Since(start)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.on {
		m.times = append(m.times, d)
	}
}

func (m *meter) report(out io.Writer, o options, took time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.times) == 0 {
		return errors.New("no operation was done")
	}
	slices.Sort(m.times)
	at := func(p float64) time.Duration { return m.times[int(p*float64(len(m.times)-1))].Round(time.Microsecond) }
	_, err := fmt.Fprintf(out, "work=%s clients=%d ops=%d ops/s=%.0f p50=%v p99=%v max=%v\n",
		o.work, o.clients, len(m.times), float64(len(m.times))/took.Seconds(), at(0.5), at(0.99), at(1))
	return err
}
