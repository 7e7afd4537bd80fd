package lock

import (
	"context"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"golang.org/x/sync/errgroup"

	"github.com/latchkey-db/latchkey/lock/deadlock"
	"github.com/latchkey-db/latchkey/lock/queue"
)

const (
	// lookEvery is how often a node looks for deadlocks while clients wait there. Who waits for less
	// than that causes no search.
	lookEvery = 300 * time.Millisecond
	// maxProof bounds the time that it takes to prove that places are there, and provedAtATime
	// how many are proved side by side.
	maxProof      = 5 * time.Second
	provedAtATime = 64
)

// lookOut looks for deadlocks for as long as clients with names wait on this node.
func (s *Service) lookOut() {
	beat := time.NewTicker(lookEvery)
	defer beat.Stop()
	for {
		select {
		case <-beat.C:
		case <-s.ctx.Done():
			return
		}
		clients, waiting := s.inTheWay()
		if !waiting {
			return
		}
		if len(clients) > 0 {
			s.untangle(clients)
		}
	}
}

// untangle looks for deadlocks that clients have part in, and ends the calls of this node that must
// fail.
//
// What nodes believe is late and of different moments. So the places are proved to be there, and then
// the nodes are asked again. A place never comes back, and neither does a call: what was there
// the first time and the second was there in between, all of it at the moment of the proof. So at that moment
// each of them waited for the next, and that lasts until one gives up.
func (s *Service) untangle(clients []string) {
	first := s.search(s.otherNodes())
	first.follow(clients)
	found := slices.DeleteFunc(deadlock.Find(first.waits), func(d deadlock.Deadlock) bool { return len(s.calls(&d)) == 0 })
	if len(found) == 0 {
		return
	}
	proved := s.proved(found)
	again := s.search(first.nodes)
	again.ask(clientsOf(found))
	for i := range found {
		d := &found[i]
		told, ok := circle(d, proved)
		if ok && lasts(d, again.waits) {
			for _, w := range s.calls(d) {
				w.tr.end(w, told)
			}
		}
	}
}

// otherNodes returns the other nodes of the cluster.
func (s *Service) otherNodes() []uint64 {
	if s.peers == nil {
		return nil
	}
	return s.peers.Nodes()
}

// calls returns the calls on this node that must fail for a deadlock.
func (s *Service) calls(d *deadlock.Deadlock) []*waiter {
	victim := &d.Cycle[0]
	return slices.DeleteFunc(s.waitersOf(victim.Client), func(w *waiter) bool {
		return !slices.ContainsFunc(d.Proof, func(p deadlock.Wait) bool {
			return p.Place == victim.Place && slices.Contains(p.Calls, w.attempt)
		})
	})
}

// clientsOf returns the clients of deadlocks.
func clientsOf(found []deadlock.Deadlock) (clients []string) {
	known := make(map[string]bool)
	for _, d := range found {
		for _, w := range d.Proof {
			if !known[w.Client] {
				known[w.Client] = true
				clients = append(clients, w.Client)
			}
		}
	}
	return clients
}

// proved returns the keys of places that deadlocks are made of which are there, by proofs of
// their shards.
func (s *Service) proved(found []deadlock.Deadlock) map[deadlock.Place]*mvccpb.KeyValue {
	wanted := make(map[deadlock.Place]bool)
	for _, d := range found {
		for _, w := range d.Proof {
			wanted[w.Place] = true
			for _, b := range w.Before {
				wanted[b.Place] = true
			}
		}
	}
	ctx, cancel := context.WithTimeout(s.ctx, maxProof)
	defer cancel()
	var mu sync.Mutex
	proved := make(map[deadlock.Place]*mvccpb.KeyValue, len(wanted))
	g := errgroup.Group{}
	g.SetLimit(provedAtATime)
	for p := range wanted {
		g.Go(func() error {
			resp, err := s.node.Prove(ctx, &pb.RangeRequest{Key: []byte(p.Key)})
			if err == nil && len(resp.Kvs) == 1 && resp.Kvs[0].CreateRevision == p.Created {
				mu.Lock()
				defer mu.Unlock()
				proved[p] = resp.Kvs[0]
			}
			return nil // what is not proved is looked for again
		})
	}
	_ = g.Wait()
	return proved
}

// circle returns what the caller is told of a deadlock, if all places that it is made of are
// proved.
func circle(d *deadlock.Deadlock, proved map[deadlock.Place]*mvccpb.KeyValue) (*DeadlockError, bool) {
	for _, w := range d.Proof {
		if proved[w.Place] == nil || slices.ContainsFunc(w.Before, func(b deadlock.Before) bool { return proved[b.Place] == nil }) {
			return nil, false
		}
	}
	e := &DeadlockError{}
	for _, w := range d.Cycle {
		e.Cycle = append(e.Cycle, Waiting{w.Client, w.Lock, w.Created, queue.EntryOf(proved[w.Place]).Asked})
	}
	return e, true
}

// lasts reports whether a deadlock is there by what was told of waits later, too.
func lasts(d *deadlock.Deadlock, later []deadlock.Wait) bool {
	clients := clientsOf([]deadlock.Deadlock{*d})
	theirs := slices.DeleteFunc(slices.Clone(later), func(w deadlock.Wait) bool { return !slices.Contains(clients, w.Client) })
	return slices.ContainsFunc(deadlock.Find(deadlock.Lasting(d.Proof, theirs)), func(now deadlock.Deadlock) bool {
		return now.Cycle[0].Place == d.Cycle[0].Place
	})
}

// end has a waiter hear that it waits in a deadlock, unless its turn has come.
func (tr *tracker) end(w *waiter, why *DeadlockError) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	w.tell(turn{err: why})
}
