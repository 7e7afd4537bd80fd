package raft

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2"
	sm "github.com/lni/dragonboat/v4/statemachine"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// errNoLookup is returned for dragonboat's own reads: the machines have read
// sides of their own.
var errNoLookup = errors.New("state is not read through Raft")

// stateMachine is a replica's state as dragonboat drives it: it keeps the rules
// of terms and batch numbers and leaves the commands to the machine.
type stateMachine struct {
	r  *Replica
	db *pebble.DB

	// progress is protected by the replica's machineMu.
	progress progress
}

var _ sm.IOnDiskStateMachine = (*stateMachine)(nil)

// settlement is a command's outcome that waits for the commit of its batch.
type settlement struct {
	call    *call
	outcome Outcome
}

// Open returns the index of the last entry that the state holds.
func (s *stateMachine) Open(<-chan struct{}) (uint64, error) {
	s.r.machineMu.Lock()
	defer s.r.machineMu.Unlock()
	if err := checkTags(s.db, s.r.prefix); err != nil {
		return 0, s.stop("open state", err)
	}
	p, err := readProgress(s.db, s.r.prefix)
	if err != nil {
		return 0, err
	}
	s.progress = p
	s.r.opened(p)
	return p.index, nil
}

// Update applies committed entries. Their changes and the new progress are one
// Pebble batch. An error stops the process, which is right: the state can't be
// written.
func (s *stateMachine) Update(entries []sm.Entry) ([]sm.Entry, error) {
	s.r.Stall("apply")
	s.r.machineMu.Lock()
	defer s.r.machineMu.Unlock()
	b := s.db.NewBatch()
	// Closed, its memory serves the next one. Only a batch that was not committed tells an error.
	defer func() { _ = b.Close() }()
	run := s.r.machine.Apply(b)
	p := s.progress
	var done []settlement
	for i := range entries {
		var err error
		if done, err = s.applyEntry(&p, run, entries[i], done); err != nil {
			return nil, s.stop("apply entry", err)
		}
		entries[i].Result = sm.Result{Value: 1}
	}
	if err := run.Finish(); err != nil {
		return nil, s.stop("finish batch", err)
	}
	if err := b.Set(progressKey(s.r.prefix), p.encode(), nil); err != nil {
		return nil, s.stop("write progress", err)
	}
	began := time.Now()
	if err := s.commit(b); err != nil {
		return nil, s.stop("commit batch", err)
	}
	s.r.observer.StateCommitted(time.Since(began))
	s.progress = p
	run.Publish()
	// Progress first: who hears an outcome takes Applied for the index that has it.
	s.r.advanced(p)
	for _, d := range done {
		d.call.settled(d.outcome)
	}
	return entries, nil
}

func (s *stateMachine) commit(b *pebble.Batch) error {
	defer endOnPanic(s.r.fatal, "write state")
	return b.Commit(pebble.NoSync)
}

// applyEntry applies one entry and adds the outcomes that somebody waits for.
func (s *stateMachine) applyEntry(p *progress, run Run, e sm.Entry, done []settlement) ([]settlement, error) {
	p.index = e.Index
	var r entryReader
	kind, err := r.open(e.Cmd)
	if err != nil {
		return done, fmt.Errorf("entry %d: %w", e.Index, err)
	}
	switch kind {
	case entryBegin:
		term, err := r.uvarint()
		if err = errors.Join(err, r.end()); err != nil {
			return done, fmt.Errorf("entry %d: %w", e.Index, err)
		}
		if term > p.term {
			p.term, p.number = term, 0
			done = s.r.passed(term, 0, done)
			if err := run.Begin(); err != nil {
				return done, fmt.Errorf("entry %d: begin term %d: %w", e.Index, term, err)
			}
		}
		return done, nil
	case entryBatch, entryNumbered:
		h, err := r.batchHeader(kind == entryNumbered)
		if err != nil {
			return done, fmt.Errorf("entry %d: %w", e.Index, err)
		}
		if h.term != p.term || h.number <= p.number {
			return done, nil
		}
		p.number = h.number
		done = s.r.passed(h.term, h.number, done)
		return s.applyBatch(run, h, &r, done)
	default:
		return done, fmt.Errorf("entry %d: type %d: %w", e.Index, kind, keys.ErrNewer)
	}
}

func (s *stateMachine) applyBatch(run Run, h batchHeader, r *entryReader, done []settlement) ([]settlement, error) {
	calls := s.r.arrived(h.term, h.number)
	if calls != nil && uint64(len(calls)) != h.count {
		return done, fmt.Errorf("batch %d of term %d: %d commands, %d expected", h.number, h.term, h.count, len(calls))
	}
	for i := range h.count {
		c, err := r.command(h.numbered)
		if err != nil {
			return done, fmt.Errorf("batch %d of term %d: %w", h.number, h.term, err)
		}
		c.Compacted = h.compacted
		var waits *call
		if calls != nil {
			waits = calls[i]
		} else {
			waits = s.r.came(c.ID)
		}
		began := time.Now()
		result, rejected, failed := run.Command(c, waits != nil)
		if failed != nil {
			return done, fmt.Errorf("batch %d of term %d, command %d: %w", h.number, h.term, i, failed)
		}
		if s.r.observe != nil {
			s.r.observe(c, rejected, time.Since(began))
		}
		if waits != nil {
			done = append(done, settlement{waits, Outcome{result, rejected, true}})
		}
	}
	return done, r.end()
}

// stop says what failed before the error takes the process down.
func (s *stateMachine) stop(doing string, err error) error {
	log := s.r.log.With(slog.String("while", doing), slog.Uint64("shard", s.r.shardID), slog.Any("error", err))
	if errors.Is(err, keys.ErrNewer) {
		log.Error("newer nodes have written what this one does not know: the node stops; upgrade it, then start it again")
	} else {
		log.Error("state can't be kept: the node stops; check the disk that holds the data directory, then start it again")
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// Lookup is not used.
func (s *stateMachine) Lookup(any) (any, error) { return nil, errNoLookup }

// Sync makes everything applied durable.
func (s *stateMachine) Sync() error {
	defer endOnPanic(s.r.fatal, "sync state")
	if err := s.r.syncer.Sync(); err != nil {
		return s.stop("sync state", err)
	}
	return nil
}

// PrepareSnapshot pins the state as it is now.
func (s *stateMachine) PrepareSnapshot() (any, error) {
	s.r.machineMu.Lock()
	defer s.r.machineMu.Unlock()
	return s.db.NewSnapshot(), nil
}

// SaveSnapshot writes the pinned state.
func (s *stateMachine) SaveSnapshot(pinned any, w io.Writer, stop <-chan struct{}) error {
	snap, ok := pinned.(*pebble.Snapshot)
	if !ok {
		return fmt.Errorf("save snapshot: unexpected context %T", pinned)
	}
	err := writeSnapshot(snap, s.r.prefix, w, stop)
	if cerr := snap.Close(); err == nil {
		err = cerr
	}
	return stoppedOr(err)
}

// stoppedOr returns dragonboat's error for a snapshot that was stopped as
// dragonboat knows it, and any other as it is. On another it panics.
func stoppedOr(err error) error {
	if errors.Is(err, sm.ErrSnapshotStopped) {
		return sm.ErrSnapshotStopped
	}
	return err
}

// RecoverFromSnapshot replaces the state. Whoever waits for a command gets the
// unknown outcome before the new state is visible: the log between the old
// state and the new one was never seen here.
func (s *stateMachine) RecoverFromSnapshot(r io.Reader, stop <-chan struct{}) error {
	s.r.Stall("recover")
	s.r.observer.SnapshotLoading(true)
	defer s.r.observer.SnapshotLoading(false)
	s.r.machineMu.Lock()
	defer s.r.machineMu.Unlock()
	s.r.lost()
	s.r.machine.BeginReload()
	defer endOnPanic(s.r.fatal, "write state of a snapshot")
	if err := readSnapshot(s.db, s.r.fs, s.r.tempDir, s.r.prefix, r, stop); err != nil {
		// The old state is still there, whole.
		if rerr := s.r.machine.Reload(); rerr != nil {
			return errors.Join(err, rerr)
		}
		return stoppedOr(err)
	}
	if err := checkTags(s.db, s.r.prefix); err != nil {
		return s.stop("load state from snapshot", err)
	}
	p, err := readProgress(s.db, s.r.prefix)
	if err != nil {
		return err
	}
	if err := s.r.machine.Reload(); err != nil {
		return s.stop("load state from snapshot", err)
	}
	s.progress = p
	s.r.jumped(p)
	return nil
}

// Close is called when the replica is unloaded; the node owns Pebble.
func (s *stateMachine) Close() error { return nil }

// newStateMachine returns dragonboat's factory of the replica's state machine.
func (r *Replica) newStateMachine(db *pebble.DB) sm.CreateOnDiskStateMachineFunc {
	return func(uint64, uint64) sm.IOnDiskStateMachine { return &stateMachine{r: r, db: db} }
}
