package shard

import (
	"sync"
	"time"

	"github.com/latchkey-db/latchkey/internal/commit"
)

// holding knows since when transactions over several shards hold keys on this replica, for
// operators alone. A replica that is loaded counts from then.
type holding struct {
	mu sync.Mutex
	// since is protected by mu.
	since map[commit.ID]time.Time
}

// loaded begins anew with the transactions of a table.
func (h *holding) loaded(t *commit.Table) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.since = make(map[commit.ID]time.Time)
	for id := range t.AllHeld() {
		h.since[id] = time.Now()
	}
}

// published takes over what a run of commands has changed: began are the transactions that have
// held keys from some command of it on, and over those that hold none any more.
func (h *holding) published(began, over []commit.ID) {
	if len(began)+len(over) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range began {
		h.since[id] = time.Now()
	}
	for _, id := range over {
		delete(h.since, id)
	}
}

// oldest returns for how long a transaction has held keys, 0 if none does.
func (h *holding) oldest() (age time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, since := range h.since {
		age = max(age, time.Since(since))
	}
	return age
}

// Unsettled is what transactions over several shards have still to do on a replica.
type Unsettled struct {
	// Holds is the number of transactions that hold keys, and Oldest for how long this replica
	// has known of the oldest.
	Holds  int
	Oldest time.Duration
	// Unfinished is the number of those that the shard has committed, as their home, and that
	// another one has perhaps still to finish.
	Unfinished int
}

// Unsettled returns what transactions have still to do.
func (d *Data) Unsettled() Unsettled {
	return Unsettled{
		Holds: d.store.Stats().Holds, Oldest: d.holding.oldest(), Unfinished: len(d.transactions.AllCommitted()),
	}
}
