package lock

import (
	"context"
	"slices"
	"time"

	"github.com/latchkey-db/latchkey/lock/deadlock"
)

// Peers are the other nodes of the cluster, whose callers wait there.
type Peers interface {
	// Nodes names them.
	Nodes() []uint64
	// Waits asks one of them for its Service.Waits. It returns when that is answered, or can't be
	// any more.
	Waits(ctx context.Context, node uint64, clients []string) ([]deadlock.Wait, error)
}

// Bounds of a search. What lies behind them is not known to wait.
const (
	// maxAsked is of how many clients a search asks.
	maxAsked = 1 << 14
	// maxSteps is how many clients lie between two that wait for each other.
	maxSteps = 64
)

// search finds out what clients wait for, and so on.
type search struct {
	s *Service
	// nodes are those that have answered all that they were asked.
	nodes []uint64
	asked map[string]bool
	waits []deadlock.Wait
}

// search returns a search over nodes. One that has not answered an earlier question yet is
// not asked another: what waits there is not known until it is back.
func (s *Service) search(nodes []uint64) *search {
	s.mu.Lock()
	defer s.mu.Unlock()
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(node uint64) bool { return s.silent[node] })
	return &search{s: s, nodes: nodes, asked: make(map[string]bool)}
}

// follow asks what clients wait for, and then for the clients in their way, until there is nobody
// left to ask for.
func (q *search) follow(clients []string) {
	for range maxSteps {
		from := len(q.waits)
		if clients = q.unasked(clients); len(clients) == 0 {
			return
		}
		q.ask(clients)
		clients = nil
		for _, w := range q.waits[from:] {
			for _, b := range w.Before {
				clients = append(clients, b.Client)
			}
		}
	}
}

// unasked returns those clients that were not asked for yet, as far as the bound goes.
func (q *search) unasked(clients []string) (rest []string) {
	for _, client := range clients {
		if !q.asked[client] && len(q.asked) < maxAsked {
			q.asked[client] = true
			rest = append(rest, client)
		}
	}
	return rest
}

// ask asks all nodes side by side what clients wait for, this one too. A node that can't be
// asked, or lets the service's patience end, is left out from then on.
func (q *search) ask(clients []string) {
	type answer struct {
		node  uint64
		waits []deadlock.Wait
		err   error
	}
	answers := make(chan answer, len(q.nodes))
	for _, node := range q.nodes {
		q.s.asking(node, true)
		q.s.tracking.Go(func() {
			waits, err := q.s.peers.Waits(q.s.ctx, node, clients)
			q.s.asking(node, false)
			answers <- answer{node, waits, err}
		})
	}
	q.waits = append(q.waits, q.s.Waits(clients)...)
	late := time.NewTimer(q.s.patience)
	defer late.Stop()
	var answered []uint64
	for range q.nodes {
		select {
		case a := <-answers:
			if a.err == nil {
				answered = append(answered, a.node)
				q.waits = append(q.waits, a.waits...)
			}
			continue
		case <-late.C:
		case <-q.s.ctx.Done():
		}
		break
	}
	q.nodes = answered
}

// asking notes whether a node has a question to answer.
func (s *Service) asking(node uint64, asked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if asked {
		s.silent[node] = true
	} else {
		delete(s.silent, node)
	}
}
