package lock

import (
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/lock/queue"
)

// known is a place as it was found, or made.
type known struct {
	kv   *mvccpb.KeyValue
	says Entry
}

func knownOf(kv *mvccpb.KeyValue) *known { return &known{kv, queue.EntryOf(kv)} }

// maxKept is how many grants a node keeps in mind.
const maxKept = 1024

// granted are the places that calls of this node were granted last, as these have written them, by token. Who
// releases one mostly does so at the same node and soon: then what is to be deleted need not be looked up. That it is
// still the newest the write tells.
type granted struct {
	mu sync.Mutex
	// places are the places, and order their tokens, the oldest at next; protected by mu.
	places map[int64]*known
	order  [maxKept]int64
	next   int
}

// keep keeps a place in mind, in place of the oldest. One with metadata is too large for that.
func (g *granted) keep(p *known) {
	if p.says.Metadata != "" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.places == nil {
		g.places = make(map[int64]*known)
	}
	delete(g.places, g.order[g.next])
	g.order[g.next] = p.kv.CreateRevision
	g.next = (g.next + 1) % maxKept
	g.places[p.kv.CreateRevision] = p
}

// take returns the place in a queue that a client was granted by a token, and forgets it, or nil.
func (g *granted) take(prefix, client string, token int64) *known {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.places[token]
	if p == nil || p.says.Client != client || !strings.HasPrefix(string(p.kv.Key), prefix) {
		return nil
	}
	delete(g.places, token)
	return p
}
