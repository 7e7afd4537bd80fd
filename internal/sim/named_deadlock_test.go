package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/latchkey-db/latchkey/internal/remote"
	"github.com/latchkey-db/latchkey/lock"
	"github.com/latchkey-db/latchkey/lock/deadlock"
)

// lockPeers are the other nodes of a process.
type lockPeers struct{ p *process }

func (l lockPeers) Nodes() (others []uint64) {
	for id := uint64(1); id <= nodes; id++ {
		if id != l.p.node.id {
			others = append(others, id)
		}
	}
	return others
}

func (l lockPeers) Waits(ctx context.Context, node uint64, clients []string) ([]deadlock.Wait, error) {
	return remote.Waits(ctx, mesh(l), node, clients)
}

// Clients take two locks at a time in any order, through any nodes, while nodes are cut off and heal,
// and messages are lost and late. They wait for as long as it takes: only the end of deadlocks has them
// all go on. Whoever is told of one was in it.
func TestDeadlocksUnderFaults(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		services := make([]*lock.Service, nodes)
		for i := range services {
			p := c.node(uint64(i + 1))
			services[i] = lock.New(lock.Config{
				Store: routed{p.router}, Node: routed{p.router}, Peers: lockPeers{p}, Patience: time.Second, Now: time.Now,
			})
			p.waits = services[i].Waits
			defer services[i].Close()
		}
		end, stop := context.WithTimeout(t.Context(), unlessShort(3*time.Minute, 20*time.Second))
		defer stop()
		var faulty sync.WaitGroup
		faulty.Go(func() { c.cutAndHeal(end, 3*time.Second, 6*time.Second) })
		seen := &circles{spans: make(map[string]span)}
		var clients sync.WaitGroup
		for i := range 5 {
			w := &worker{name: fmt.Sprint("client ", i), services: services, seen: seen, rnd: rand.New(rand.NewPCG(c.options.seed, uint64(i)+2))}
			clients.Go(func() {
				for end.Err() == nil {
					w.work(t.Context())
				}
			})
		}
		faulty.Wait()
		healed := time.Now()
		clients.Wait()
		if took := time.Since(healed); took > time.Minute {
			t.Errorf("the last clients went on %v after the end of the faults", took)
		}
		for _, fault := range seen.faults {
			t.Error(fault)
		}
		if seen.deadlocks < 5 || seen.done < unlessShort(20, 10) {
			c.unshown("%d deadlocks, %d clients have had their locks", seen.deadlocks, seen.done)
		}
	})
}

// span is a time; to is zero while it lasts.
type span struct{ from, to time.Time }

// circles knows what clients do.
type circles struct {
	mu sync.Mutex
	// spans are the last in which a client "waits for" a lock, and in which it "has" a place for it.
	spans     map[string]span
	deadlocks int
	done      int
	faults    []string
}

func (s *circles) begin(client, does, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spans[client+does+name] = span{from: time.Now()}
}

func (s *circles) end(client, does, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spans[client+does+name] = span{s.spans[client+does+name].from, time.Now()}
}

// judge judges what a client is told that waits for a lock: there was a moment at which all of the circle
// waited, and had what they were waited for.
func (s *circles) judge(client, name string, d *lock.DeadlockError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadlocks++
	if d.Cycle[0].Client != client || d.Cycle[0].Lock != name {
		s.faults = append(s.faults, fmt.Sprintf("%s, who waits for %s, is told %+v", client, name, d.Cycle))
	}
	common := span{to: time.Now()}
	for i, w := range d.Cycle {
		next := d.Cycle[(i+1)%len(d.Cycle)]
		for _, what := range []span{s.spans[w.Client+waitsFor+w.Lock], s.spans[next.Client+has+w.Lock]} {
			if what.from.After(common.from) {
				common.from = what.from
			}
			if !what.to.IsZero() && what.to.Before(common.to) || what.from.IsZero() {
				common.to = what.to
			}
		}
		if w.Token > d.Cycle[0].Token {
			s.faults = append(s.faults, fmt.Sprintf("%s is not the youngest of %+v", client, d.Cycle))
		}
	}
	if common.to.Before(common.from) {
		s.faults = append(s.faults, fmt.Sprintf("%s is told of %+v, which never was", client, d.Cycle))
	}
}

const waitsFor, has = " waits for ", " has "

// worker is a client that takes two locks at a time.
type worker struct {
	name     string
	services []*lock.Service
	seen     *circles
	rnd      *rand.Rand
}

func (w *worker) any() *lock.Service { return w.services[w.rnd.IntN(len(w.services))] }

func (w *worker) work(ctx context.Context) {
	names := []string{"a", "b", "z"}
	w.rnd.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	w.under(ctx, names[:2])
}

// under takes locks one by one, and gives them back when it has them all, or is in a deadlock.
func (w *worker) under(ctx context.Context, names []string) {
	if len(names) == 0 {
		w.seen.mu.Lock()
		defer w.seen.mu.Unlock()
		w.seen.done++
		return
	}
	r := &lock.Request{Name: names[0], Client: w.name, ID: fmt.Sprint(w.rnd.Int64()), TTL: time.Hour, Wait: time.Hour}
	token, ok := w.take(ctx, r)
	if !ok {
		return
	}
	time.Sleep(time.Duration(w.rnd.IntN(500)) * time.Millisecond)
	w.under(ctx, names[1:])
	w.seen.end(w.name, has, r.Name)
	w.insist(func() error { return w.any().Release(ctx, r.Name, w.name, token, r.ID) })
}

// insist calls fn until it succeeds.
func (w *worker) insist(fn func() error) {
	for fn() != nil {
		time.Sleep(100 * time.Millisecond)
	}
}

// take makes a request, again where it fails, until the client has the lock or is in a deadlock.
func (w *worker) take(ctx context.Context, r *lock.Request) (token int64, ok bool) {
	w.seen.begin(w.name, has, r.Name)
	w.seen.begin(w.name, waitsFor, r.Name)
	defer w.seen.end(w.name, waitsFor, r.Name)
	var d *lock.DeadlockError
	w.insist(func() error {
		g, err := w.any().Acquire(ctx, r)
		switch {
		case err == nil:
			token = g.Token
		case errors.As(err, &d):
			err = nil
		}
		return err
	})
	if d == nil {
		return token, true
	}
	w.seen.judge(w.name, r.Name, d)
	// Where the call could not leave its place is still there.
	w.insist(func() error {
		err := w.any().ForceRelease(ctx, r.Name, d.Cycle[0].Token, "left")
		if errors.Is(err, lock.ErrNotHolder) {
			err = nil
		}
		return err
	})
	w.seen.end(w.name, has, r.Name)
	return 0, false
}
