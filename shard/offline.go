package shard

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/invariant"
	"github.com/latchkey-db/latchkey/internal/raft"
)

// Offline is the data shards of a cluster, each by one replica that no host runs. What is between
// shards is brought to an end as their leaders would have done it, by the same commands.
type Offline struct {
	shards map[uint64]*offlineShard
	// home returns the shard that keeps the record of a lease.
	home func(lease int64) uint64
}

type offlineShard struct {
	*Data

	raft *raft.Offline
}

// NewOffline returns no shards. home says which of them keeps the record of a lease.
func NewOffline(home func(lease int64) uint64) *Offline {
	return &Offline{shards: make(map[uint64]*offlineShard), home: home}
}

// Add opens the state of a shard's replica, and applies all of its log.
func (o *Offline) Add(db *pebble.DB, replica *raft.Offline) (*Data, error) {
	r := replica.Replica()
	d, err := open(db, r.ShardID(), r.ReplicaID())
	if err != nil {
		return nil, err
	}
	d.replica, d.observer, d.log = r, unobserved{}, slog.New(slog.DiscardHandler)
	d.sweeper = newSweeper(d.store, nil, d.observer, d.log)
	d.sweeper.close() // what is compacted may stay
	if err := replica.Replay(d); err != nil {
		return nil, fmt.Errorf("apply log of shard %d: %w", r.ShardID(), err)
	}
	o.shards[r.ShardID()] = &offlineShard{d, replica}
	return d, nil
}

// each returns the shards by id.
func (o *Offline) each() []*offlineShard {
	shards := make([]*offlineShard, 0, len(o.shards))
	for _, id := range slices.Sorted(maps.Keys(o.shards)) {
		shards = append(shards, o.shards[id])
	}
	return shards
}

// Torn is a transaction over several shards that was committed, and of whose changes those on one
// shard are lost.
type Torn struct {
	// Rev is the transaction's revision.
	Rev     int64
	ShardID uint64
}

// Settled says what Settle did.
type Settled struct {
	// Finished counts the changes of transactions that shards have made now, and Dropped the
	// transactions that were committed nowhere.
	Finished, Dropped int
	Torn              []Torn
}

// Settle brings all transactions over several shards to an end. Where the home has committed one, the other
// participants that hold keys for it make their changes. All else lets its keys go: nobody was told that it
// took place, unless that is lost.
func (o *Offline) Settle() (s Settled, err error) {
	// Before any of them makes changes that were lost on their way.
	revs := make(map[uint64]int64)
	for id, d := range o.shards {
		revs[id] = d.store.Rev()
	}
	for _, home := range o.each() {
		committed := home.transactions.AllCommitted()
		for id, c := range committed {
			for _, share := range c.Shares {
				if err := o.finish(id, c, share, revs, &s); err != nil {
					return s, err
				}
			}
		}
		if err := home.apply(kindForgetCommitted, slices.Collect(maps.Keys(committed))); err != nil {
			return s, err
		}
	}
	dropped := make(map[commit.ID]bool)
	for _, d := range o.each() {
		held := slices.Collect(maps.Keys(d.transactions.AllHeld()))
		for _, id := range held {
			if rev := o.committed(id); rev != 0 {
				s.Torn = append(s.Torn, Torn{rev, d.replica.ShardID()})
			} else {
				dropped[id] = true
			}
		}
		if err := d.apply(kindAbort, held); err != nil {
			return s, err
		}
		if left := d.Unsettled(); left.Holds > 0 || left.Unfinished > 0 {
			invariant.Violated("shard %d has not settled %+v", d.replica.ShardID(), left)
		}
	}
	s.Dropped = len(dropped)
	slices.SortFunc(s.Torn, func(a, b Torn) int {
		if a.Rev != b.Rev {
			return int(min(max(a.Rev-b.Rev, -1), 1))
		}
		return int(min(max(int64(a.ShardID)-int64(b.ShardID), -1), 1))
	})
	return s, nil
}

// finish has a participant make the changes of a transaction that its home has committed. revs are what the
// shards had reached by their logs.
func (o *Offline) finish(id commit.ID, c commit.Committed, share commit.Share, revs map[uint64]int64, s *Settled) error {
	d := o.shards[share.ShardID]
	if d == nil {
		return fmt.Errorf("a transaction of revision %d names shard %d, which is not there", c.Rev, share.ShardID)
	}
	_, held := d.transactions.Held(id)
	_, ended := d.transactions.Outcome(id)
	switch {
	case held:
		s.Finished++
		payload := commit.AppendFinishes(nil, []commit.Finish{{ID: id, Rev: c.Rev, Ops: share.Ops}})
		return d.raft.Apply(raft.Kind(kindFinish), payload)
	case !ended && revs[share.ShardID] < c.Rev:
		// It has never held the keys: what is left of its log ends before the transaction began there.
		s.Torn = append(s.Torn, Torn{c.Rev, share.ShardID})
	}
	return nil
}

// committed returns the revision of a transaction that some shard knows to be committed, 0 where none does.
func (o *Offline) committed(id commit.ID) int64 {
	for _, d := range o.shards {
		if rev, _ := d.transactions.Outcome(id); rev != 0 {
			return rev
		}
	}
	return 0
}

// apply applies a command that names transactions.
func (d *offlineShard) apply(kind Kind, ids []commit.ID) error {
	if len(ids) == 0 {
		return nil
	}
	return d.raft.Apply(raft.Kind(kind), commit.AppendIDs(nil, ids...))
}

// LostTTL is the time to live, in seconds, of a lease of which there are keys, and whose grant is lost: long
// enough for who has it to renew it, short enough to end where nobody does.
const LostTTL = 60

// OfflineLeases are the leases of all shards.
type OfflineLeases struct {
	// TTLs are the times to live, in seconds, of those that have not ended, by id.
	TTLs map[int64]int64
	// Lost counts those of them whose grant is lost, so that their time to live is not known.
	Lost int

	// ended are those of which a shard still has keys, by shard.
	ended map[uint64]map[int64]bool
}

// Ended reports whether a lease that a key of a shard hangs on has ended, and the key with it.
func (l *OfflineLeases) Ended(shardID uint64, id int64) bool { return l.ended[shardID][id] }

// Leases returns the leases. One whose end is decided has ended, on all shards; and so has one of which a shard
// has keys and that its home once granted and does not have any more.
func (o *Offline) Leases() *OfflineLeases {
	l := &OfflineLeases{TTLs: make(map[int64]int64), ended: make(map[uint64]map[int64]bool)}
	for _, d := range o.shards {
		for _, rec := range d.leases.All() {
			if !rec.Ending {
				l.TTLs[rec.ID] = rec.TTL
			}
		}
	}
	for _, d := range o.each() {
		ended := make(map[int64]bool)
		l.ended[d.replica.ShardID()] = ended
		v := d.store.View()
		v.EachLease(func(id int64, _ []byte) bool {
			if _, seen := ended[id]; !seen {
				over, lost := o.leaseOf(d, id)
				ended[id] = over
				if _, known := l.TTLs[id]; lost && !known {
					l.TTLs[id] = LostTTL
					l.Lost++
				}
			}
			return true
		})
		v.Close()
	}
	return l
}

// leaseOf tells of a lease that a shard has keys of whether it has ended, and whether its grant is lost.
func (o *Offline) leaseOf(d *offlineShard, id int64) (ended, lost bool) {
	ref, hung := d.leases.RefOf(id)
	if !hung {
		return true, false
	}
	home := o.shards[o.home(id)]
	rec, ok := home.leases.Get(id)
	switch {
	case ref.Incarnation > home.leases.Granted():
		return false, true
	case !ok, rec.Incarnation != ref.Incarnation:
		return true, false
	}
	return rec.Ending, false
}
