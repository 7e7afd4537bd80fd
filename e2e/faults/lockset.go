package faults

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// LockSet has clients add numbers to sets in files, each under one lock: read the file,
// add, write the file. Holders stand still at random, longer than their session lives.
// The file whose owner checks fencing tokens must lose no number; how many the one
// without a check loses is only told.
type LockSet struct {
	report  *Report
	clients []*clientv3.Client
	seed    uint64

	checked, unchecked file
	added              atomic.Int64
	// Lost is how many numbers the file without a check lost, after Check.
	Lost int
}

// lockTTL is that of the holders' sessions, in seconds.
const lockTTL = 2

// file is a set that is read and written whole.
type file struct {
	check bool

	mu sync.Mutex
	// set is the content, token the highest that the owner has seen, acked the numbers whose
	// write was acknowledged; protected by mu.
	set   map[int64]bool
	token int64
	acked []int64
}

// open reads the file. False says that a newer holder has been here.
func (f *file) open(token int64) (map[int64]bool, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.check && token < f.token {
		return nil, false
	}
	f.token = max(f.token, token)
	set := make(map[int64]bool, len(f.set)+1)
	for n := range f.set {
		set[n] = true
	}
	return set, true
}

// write replaces the content, for the sake of one more number.
func (f *file) write(token int64, set map[int64]bool, number int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.check && token < f.token {
		return
	}
	f.token = max(f.token, token)
	f.set = set
	f.acked = append(f.acked, number)
}

func (f *file) lost() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, number := range f.acked {
		if !f.set[number] {
			n++
		}
	}
	return n
}

// NewLockSet returns the workload of five clients.
func NewLockSet(r *Report, seed uint64, clients []*clientv3.Client) *LockSet {
	return &LockSet{report: r, clients: clients, seed: seed, checked: file{check: true}}
}

// Run adds numbers.
func (l *LockSet) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(l.seed, uint64(i)))
			for ctx.Err() == nil {
				if err := l.add(ctx, l.clients[i%len(l.clients)], rnd); err != nil {
					sleep(ctx, 50*time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
}

// add takes the lock and adds a number to both files.
func (l *LockSet) add(ctx context.Context, c *clientv3.Client, rnd *rand.Rand) error {
	ctx, cancel := context.WithTimeout(ctx, 3*attempt)
	defer cancel()
	s, err := concurrency.NewSession(c, concurrency.WithTTL(lockTTL), concurrency.WithContext(ctx))
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }() // the lease ends by itself
	m := concurrency.NewMutex(s, "m/lockset")
	if err := m.Lock(ctx); err != nil {
		return err
	}
	mine, err := c.Get(ctx, m.Key())
	if err != nil {
		return err
	}
	if len(mine.Kvs) == 0 {
		return m.Unlock(ctx) // the session has ended meanwhile
	}
	token := mine.Kvs[0].CreateRevision
	checked, ok := l.checked.open(token)
	unchecked, _ := l.unchecked.open(token)
	if rnd.IntN(8) == 0 {
		// As long as it stands still the process renews nothing.
		s.Orphan()
		sleep(ctx, time.Duration(rnd.IntN(2*lockTTL*1000))*time.Millisecond)
	}
	number := l.added.Add(1)
	unchecked[number] = true
	l.unchecked.write(token, unchecked, number)
	if ok {
		checked[number] = true
		l.checked.write(token, checked, number)
	}
	l.report.Operations.Add(1)
	return m.Unlock(ctx)
}

// Check counts what was lost.
func (l *LockSet) Check(context.Context) {
	l.Lost = l.unchecked.lost()
	if n := l.checked.lost(); n > 0 {
		l.report.Violation("%d of %d numbers were lost behind checked tokens", n, len(l.checked.acked))
	}
}
