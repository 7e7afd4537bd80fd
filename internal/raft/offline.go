package raft

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"

	"github.com/cockroachdb/pebble/v2"
	"github.com/lni/dragonboat/v4/raftpb"
	sm "github.com/lni/dragonboat/v4/statemachine"
	raftvfs "github.com/lni/vfs"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raftlog"
)

// Where the majority of a shard is lost for good, no host can lead it any more. Then its state is put together offline: of
// the replicas that are left the one with the newest log is taken, by the term and the index of its last entry, as in an
// election. Whatever a majority had in its log is there if any of those has it. All of its log is applied, by the code of a
// running replica: entries that were acknowledged are among them, which a replica may have without knowing, and entries
// that nobody was told the outcome of, which take effect.

// errNotLoaded is returned for a replica whose newest state is a snapshot that it has not loaded.
var errNotLoaded = errors.New("a snapshot that another node sent has not been loaded: start the node, stop it when it waits for a quorum, and try again")

// StoppedLog is the log of a host that does not run. Nothing of it is changed.
type StoppedLog struct{ log *raftlog.Log }

// OpenStoppedLog opens the log below the directory of a host.
func OpenStoppedLog(fs raftvfs.FS, dir string) (*StoppedLog, error) {
	log, err := raftlog.Open(raftlog.Options{FS: fs, Dir: fs.PathJoin(dir, logDir), ReadOnly: true})
	if err != nil {
		return nil, err
	}
	return &StoppedLog{log}, nil
}

// Replicas returns the ids of the replicas that the log is of, by shard. A node has one replica of a shard at most.
func (l *StoppedLog) Replicas() (map[uint64]uint64, error) {
	infos, err := l.log.ListNodeInfo()
	if err != nil {
		return nil, err
	}
	replicas := make(map[uint64]uint64, len(infos))
	for _, info := range infos {
		replicas[info.ShardID] = info.ReplicaID
	}
	return replicas, nil
}

// Close closes the files.
func (l *StoppedLog) Close() error { return l.log.Close() }

// Position is that of an entry in a shard's log.
type Position struct{ Term, Index uint64 }

// Before reports whether a log that ends at p lacks what one that ends at q may have.
func (p Position) Before(q Position) bool {
	return p.Term < q.Term || p.Term == q.Term && p.Index < q.Index
}

// Offline is a replica that no host runs.
type Offline struct {
	replica *Replica
	state   *stateMachine
	log     *raftlog.Log
	end     logEnd
	// last is the position of the log's last entry, and applied how far the state was when it was opened.
	last    Position
	applied progress
	// begun says that a term of its own has begun.
	begun bool
}

// OpenOffline opens a replica whose state is in db, which must be a copy where the original is to be kept. An error wraps
// ErrDisagree where state and log don't belong together.
func OpenOffline(db *pebble.DB, log *StoppedLog, shardID, replicaID uint64) (*Offline, error) {
	o := &Offline{log: log.log}
	o.replica = &Replica{
		shardID: shardID, replicaID: replicaID, prefix: Prefix(shardID, replicaID), host: &Host{},
		log: slog.New(slog.DiscardHandler), observer: unobserved{}, changed: make(chan struct{}),
	}
	o.state = &stateMachine{r: o.replica, db: db}
	var err error
	if o.applied, err = readProgress(db, o.replica.prefix); err != nil {
		return nil, err
	}
	if o.end, err = readLogEnd(log.log, shardID, replicaID); err != nil {
		return nil, err
	}
	held, err := agree(o.end, o.applied)
	switch {
	case err != nil:
		return nil, err
	case !held:
		return nil, errNotLoaded
	}
	o.last = Position{Term: o.end.snapshot.Term, Index: o.end.snapshot.Index}
	if o.end.last > o.end.snapshot.Index {
		last, err := o.read(o.end.last)
		if err != nil {
			return nil, err
		}
		o.last = Position{Term: last[0].Term, Index: o.end.last}
	}
	return o, nil
}

// Replica returns the Raft side of the shard, which leads nothing and reaches nobody.
func (o *Offline) Replica() *Replica { return o.replica }

// Last returns the position of the log's last entry.
func (o *Offline) Last() Position { return o.last }

// Behind returns how many entries of the log the state had not applied when it was opened.
func (o *Offline) Behind() uint64 { return o.last.Index - min(o.applied.index, o.last.Index) }

// replayBytes is about how many bytes of entries are read at a time.
const replayBytes = 4 << 20

// read returns some of the log's entries from an index on, one at least.
func (o *Offline) read(index uint64) ([]raftpb.Entry, error) {
	entries, _, err := o.log.IterateEntries(nil, 0, o.replica.shardID, o.replica.replicaID, index, o.end.last+1, replayBytes)
	if err == nil && len(entries) == 0 {
		err = fmt.Errorf("%w: the log ends at %d and lacks entry %d: %s", ErrDisagree, o.end.last, index, remedy)
	}
	return entries, err
}

// Replay applies to the state, whose machine is m, all entries of the log that it lacks.
func (o *Offline) Replay(m Machine) error {
	o.replica.machine = m
	if _, err := o.state.Open(nil); err != nil {
		return err
	}
	// A snapshot holds all that is for the state up to its index (agree), and the log may begin behind it.
	for index := max(o.applied.index, o.end.snapshot.Index) + 1; index <= o.end.last; {
		entries, err := o.read(index)
		if err != nil {
			return err
		}
		var updates []sm.Entry
		for _, e := range entries {
			if !e.IsUpdateEntry() {
				continue // Raft's own
			}
			cmd, err := proposed(e)
			if err != nil {
				return err
			}
			updates = append(updates, sm.Entry{Index: e.Index, Cmd: cmd})
		}
		if len(updates) > 0 {
			if _, err := o.state.Update(updates); err != nil {
				return err
			}
		}
		index += uint64(len(entries))
	}
	return nil
}

// encodedPlain is the byte before what was proposed in an entry that dragonboat has neither compressed nor put anything
// else into. Hosts have it do neither.
const encodedPlain = 0

// proposed returns what was proposed as an entry.
func proposed(e raftpb.Entry) ([]byte, error) {
	if e.Type != raftpb.EncodedEntry || len(e.Cmd) == 0 || e.Cmd[0] != encodedPlain {
		return nil, fmt.Errorf("entry %d of type %v: %w", e.Index, e.Type, keys.ErrNewer)
	}
	return e.Cmd[1:], nil
}

// Apply applies a command behind all that was replayed, as if this replica alone had led the shard in a later term.
func (o *Offline) Apply(kind Kind, payload []byte) error {
	p := o.state.progress
	next := sm.Entry{Index: max(p.index, o.end.last) + 1}
	if !o.begun {
		next.Cmd = appendBegin(next.Cmd, max(p.term, o.last.Term)+1)
		if _, err := o.state.Update([]sm.Entry{next}); err != nil {
			return err
		}
		o.begun = true
		p, next.Index = o.state.progress, next.Index+1
	}
	next.Cmd = appendBatchHeader(nil, batchHeader{term: p.term, number: p.number + 1, count: 1})
	next.Cmd = appendCommand(next.Cmd, Command{Kind: kind, Payload: payload}, false)
	_, err := o.state.Update([]sm.Entry{next})
	return err
}

// Voters returns the replicas that count for the shard's majorities, by all of the log.
func (o *Offline) Voters() (map[uint64]bool, error) {
	voters, changed := make(map[uint64]bool), o.end.snapshot.Membership.ConfigChangeId
	for id := range o.end.snapshot.Membership.Addresses {
		voters[id] = true
	}
	for index := o.end.snapshot.Index + 1; index <= o.end.last; {
		entries, err := o.read(index)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if !e.IsConfigChange() {
				continue
			}
			var c raftpb.ConfigChange
			if err := c.Unmarshal(e.Cmd); err != nil {
				return nil, fmt.Errorf("entry %d: %w", e.Index, err)
			}
			// Others were judged by members that had changed, and did nothing.
			if c.Initialize || c.ConfigChangeId == changed {
				voters[c.ReplicaID], changed = c.Type == raftpb.AddNode, e.Index
			}
		}
		index += uint64(len(entries))
	}
	maps.DeleteFunc(voters, func(_ uint64, votes bool) bool { return !votes })
	return voters, nil
}
