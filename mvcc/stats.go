package mvcc

import "sync/atomic"

// Stats is what a Store has done since it was opened, and where its watchers
// stand.
type Stats struct {
	// Keys is the number of current keys, and Compacted the compaction revision, -1
	// if there was none.
	Keys, Compacted int64
	// Puts, Deletes and Ranges count the operations, those of transactions among
	// them, and Txns the transactions of more than one. PutBytes is the size of the
	// keys and values put.
	Puts, Deletes, Ranges, Txns, PutBytes int64
	// Swept counts the versions that Sweep has removed.
	Swept int64
	// Lagging is the number of watchers that read history, and Queued the number of
	// events that wait to be polled.
	Lagging, Queued int64
	// Holds is the number of transactions over several stores that hold keys.
	Holds int
}

// counters are the parts of Stats that only grow, and what else readers tell the store.
type counters struct {
	puts, deletes, ranges, txns, putBytes, swept atomic.Int64
	// byCreation says that a request would have been answered by the index of creations.
	byCreation atomic.Bool
}

// Stats returns the store's numbers.
func (s *Store) Stats() Stats {
	st := s.state.Load()
	c := &s.counters
	stats := Stats{
		Keys: int64(st.cur.Len()), Compacted: st.compact,
		Puts: c.puts.Load(), Deletes: c.deletes.Load(), Ranges: c.ranges.Load(), Txns: c.txns.Load(),
		PutBytes: c.putBytes.Load(), Swept: c.swept.Load(), Holds: st.holds.len(),
	}
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	stats.Lagging, stats.Queued = int64(s.hub.lagging), int64(s.hub.queued)
	return stats
}

// countTxn counts a transaction on branch b that is being run.
func (c *counters) countTxn(b *branch) {
	if b.operations() > 1 {
		c.txns.Add(1)
	}
}

// operations returns the number of operations on the branch, those of nested
// transactions in place of these.
func (b *branch) operations() int {
	n := len(b.ops) - len(b.nested)
	for i := range b.nested {
		n += b.nested[i].operations()
	}
	return n
}
