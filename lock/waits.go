package lock

import (
	"slices"
	"strings"

	"github.com/latchkey-db/latchkey/lock/deadlock"
	"github.com/latchkey-db/latchkey/lock/queue"
)

// Bounds of what is told of waits. What is left out is told as a wait that may end, or as no
// place in the way, so that no deadlock is seen that is none.
const (
	// maxWaits is of how many waits of a client a node tells.
	maxWaits = 16
	// maxBefore is how many places of a queue are told to be in the way of a wait: the oldest.
	maxBefore = 128
	// maxAnswer is how many bytes of names and keys an answer has, but for the last wait of it.
	maxAnswer = 4 << 20
)

// note takes down that a waiter of a client with a name waits, and begins to look out for
// deadlocks if it is the first. mu must be held.
func (s *Service) note(w *waiter) {
	if w.client == "" {
		return
	}
	w.tr.named++
	s.clients[w.client] = append(s.clients[w.client], w)
	if !s.looking {
		s.looking = true
		s.tracking.Go(s.lookOut)
	}
}

// forget takes back what note took down. mu must be held.
func (s *Service) forget(w *waiter) {
	if w.client == "" {
		return
	}
	if w.tr.named--; w.tr.named == 0 {
		w.tr.seen = false
	}
	rest := slices.DeleteFunc(s.clients[w.client], func(o *waiter) bool { return o == w })
	if s.clients[w.client] = rest; len(rest) == 0 {
		delete(s.clients, w.client)
	}
}

// waitersOf returns the waiters of a client on this node.
func (s *Service) waitersOf(client string) []*waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.clients[client])
}

// Waits tells what clients wait for in calls on this node. It is what this node believes, which
// may be late: who wants to rely on it proves that the places are there.
func (s *Service) Waits(clients []string) []deadlock.Wait {
	var all []deadlock.Wait
	size := 0
	for _, client := range clients {
		waiters := s.waitersOf(client)
		if len(waiters) > maxWaits || len(waiters) > 0 && size > maxAnswer {
			all = append(all, deadlock.Wait{Client: client})
			continue
		}
		for _, w := range waiters {
			wait := w.tr.wait(w)
			all = append(all, wait)
			size += bytesOf(&wait)
		}
	}
	return all
}

func bytesOf(w *deadlock.Wait) int {
	size := len(w.Key) + len(w.Client) + len(w.Lock)
	for _, b := range w.Before {
		size += len(b.Key) + len(b.Client)
	}
	return size
}

// wait tells what a waiter waits for. Where its turn has come, or the queue is not known, nothing is
// in its way.
func (tr *tracker) wait(w *waiter) deadlock.Wait {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	wait := deadlock.Wait{
		Place: deadlock.Place{Key: w.key, Created: w.created}, Client: w.client, Lock: strings.TrimSuffix(tr.prefix, "/"), Calls: []string{w.attempt},
	}
	if tr.queue == nil {
		return wait
	}
	if e := tr.queue.Get(w.key); e != nil && e.Created == w.created {
		wait.Room, wait.Before = e.Room(), tr.before(e)
	}
	return wait
}

// before returns the places in the way of one that waits. Where it can't hold beside the holders, they
// are: each of the others waits for them, too. mu must be held.
func (tr *tracker) before(e *queue.Key) (all []deadlock.Before) {
	first := tr.queue.First()
	for k := first; k != e && len(all) < maxBefore && (k.Holds || e.Beside(first)); k = k.Next() {
		b := deadlock.Before{Place: deadlock.Place{Key: k.Name, Created: k.Created}, Client: k.Client}
		if k.Beside(e) {
			b.Permits = k.Permits
		}
		if k.Client != "" && (b.Permits > 0 || !k.Beside(e)) {
			all = append(all, b)
		}
	}
	return all
}

// inTheWay returns the holders of queues in which calls waited here the last time that it was called,
// and wait now, maxAsked at most; and whether any call of a client with a name waits. If none does,
// nobody looks out for deadlocks any more.
func (s *Service) inTheWay() (clients []string, waiting bool) {
	var trackers []*tracker
	s.mu.Lock()
	s.looking = len(s.clients) > 0
	waiting = s.looking
	// In no order, so that those beyond the bound are looked at another time.
	for _, tr := range s.tracked {
		if tr.seen {
			trackers = append(trackers, tr)
		}
		tr.seen = tr.named > 0
	}
	s.mu.Unlock()
	known := make(map[string]bool)
	for _, tr := range trackers {
		for _, client := range tr.ahead() {
			if !known[client] && len(clients) < maxAsked {
				known[client] = true
				clients = append(clients, client)
			}
		}
	}
	return clients, waiting
}

// ahead returns the clients of the holders: whoever waits can't end without one of them that stays, so
// that every deadlock is found from there.
func (tr *tracker) ahead() (clients []string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.queue == nil {
		return nil
	}
	for k := tr.queue.First(); k != nil && k.Holds && len(clients) < maxBefore; k = k.Next() {
		if k.Client != "" {
			clients = append(clients, k.Client)
		}
	}
	return clients
}
