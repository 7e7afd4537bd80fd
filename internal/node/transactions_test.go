package node

import (
	"testing"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/placement"
	"github.com/latchkey-db/latchkey/shard"
)

// Metrics show transactions over several shards that hold keys, and how long the oldest has, on
// each node until they are settled: here one whose node does not know it. They show too which
// some shard has still to finish: here one that nobody can.
func TestUnsettledTransactions(t *testing.T) {
	c := newCluster(t, 3, "--initial-splits", "n")
	c.start(c.machines...)
	take := func(s *shard.Step) {
		t.Helper()
		until(t, "a step of a transaction", func() bool {
			_, err := c.leader("a").shards[placement.FirstDataShard].Take(t.Context(), nil, s)
			return err == nil
		})
	}
	everywhere := func(name string, is func(v float64) bool) {
		t.Helper()
		until(t, name, func() bool {
			for _, m := range c.machines {
				if !is(measured(t, m.node)[name]) {
					return false
				}
			}
			return true
		})
	}
	prepare := func(counter uint64, key string) commit.ID {
		t.Helper()
		id := commit.ID{Node: 1, Boot: 1, Counter: counter}
		take(&shard.Step{Prepare: &commit.Prepare{
			ID: id, Home: placement.FirstDataShard, Writes: keys.NewSet(keys.Point([]byte(key))),
		}})
		return id
	}
	prepare(1, "a")
	everywhere("latchkey_transactions_holding", func(v float64) bool { return v == 1 })
	everywhere("latchkey_transactions_holding_oldest_seconds", func(v float64) bool { return v > 0 })
	everywhere("latchkey_transactions_holding", func(v float64) bool { return v == 0 })
	everywhere("latchkey_transactions_holding_oldest_seconds", func(v float64) bool { return v == 0 })

	id := prepare(2, "b")
	const nowhere = 1 << 40
	take(&shard.Step{Decision: &commit.Decision{ID: id, Shares: []commit.Share{{ShardID: nowhere}}}})
	everywhere("latchkey_transactions_unfinished", func(v float64) bool { return v == 1 })
	everywhere("latchkey_transactions_holding", func(v float64) bool { return v == 0 })
}
