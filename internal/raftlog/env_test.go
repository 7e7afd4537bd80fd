package raftlog

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
	"github.com/lni/vfs"
)

const testDir = "/log"

// open opens a log with small segments.
func open(t *testing.T, fs vfs.FS) *Log {
	t.Helper()
	l, err := Open(Options{FS: fs, Dir: testDir, SegmentBytes: 4 << 10})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// seed returns the seed of a random test, which is printed.
func seed(t *testing.T) uint64 {
	t.Helper()
	n := uint64(time.Now().UnixNano())
	if s := os.Getenv("LATCHKEY_RAFTLOG_SEED"); s != "" {
		var err error
		if n, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("replay with LATCHKEY_RAFTLOG_SEED=%d", n)
	return n
}

// kept is what a log should hold of a replica.
type kept struct {
	bootstrap raftpb.Bootstrap
	made      bool // bootstrapped
	state     raftpb.State
	snapshot  raftpb.Snapshot
	// first is the index of the first of entries, in the order of their indexes.
	first   uint64
	entries []raftpb.Entry
}

func (k *kept) last() uint64 { return k.first + uint64(len(k.entries)) - 1 }

func (k *kept) clone() *kept {
	c := *k
	c.entries = append([]raftpb.Entry(nil), k.entries...)
	return &c
}

// model is what a log should hold, and makes random changes to both.
type model struct {
	rnd      *rand.Rand
	replicas map[member]*kept
}

func newModel(seed uint64) *model {
	return &model{rnd: rand.New(rand.NewPCG(seed, 0)), replicas: make(map[member]*kept)}
}

func (m *model) clone() map[member]*kept {
	c := make(map[member]*kept)
	for k, v := range m.replicas {
		c[k] = v.clone()
	}
	return c
}

func (m *model) at(k member) *kept {
	if m.replicas[k] == nil {
		m.replicas[k] = &kept{first: 1}
	}
	return m.replicas[k]
}

func (m *model) member() member { return member{1 + m.rnd.Uint64N(4), 1 + m.rnd.Uint64N(2)} }

// step makes a random change, and reports whether the log may acknowledge it before it is
// durable.
func (m *model) step(l *Log) (lazy bool, err error) {
	k := m.member()
	r := m.at(k)
	switch n := m.rnd.IntN(100); {
	case n < 60:
		return m.save(l)
	case n < 70:
		return true, m.commit(l, k, r)
	case n < 78:
		ss := m.snapshot(k, r.last())
		if ss.Index > r.snapshot.Index {
			r.snapshot = ss
		}
		return false, l.SaveSnapshots([]raftpb.Update{{ShardID: k.shardID, ReplicaID: k.replicaID, Snapshot: ss}})
	case n < 90:
		// Entries up to a snapshot are dropped at some later time.
		to := r.snapshot.Index - min(r.snapshot.Index, m.rnd.Uint64N(3))
		for len(r.entries) > 0 && r.first <= to {
			r.entries, r.first = r.entries[1:], r.first+1
		}
		return true, l.RemoveEntriesTo(k.shardID, k.replicaID, to)
	case n < 95:
		r.bootstrap, r.made = raftpb.Bootstrap{Addresses: map[uint64]string{1: fmt.Sprint("a", m.rnd.IntN(9))}, Type: raftpb.OnDiskStateMachine}, true
		return false, l.SaveBootstrapInfo(k.shardID, k.replicaID, r.bootstrap)
	case n < 96:
		delete(m.replicas, k)
		return false, l.RemoveNodeData(k.shardID, k.replicaID)
	case n < 97:
		ss := m.snapshot(k, r.last()+5)
		ss.Type = raftpb.OnDiskStateMachine
		m.replicas[k] = &kept{
			made: true, bootstrap: raftpb.Bootstrap{Join: true, Type: ss.Type},
			state: raftpb.State{Term: ss.Term, Commit: ss.Index}, snapshot: ss, first: ss.Index + 1,
		}
		return false, l.ImportSnapshot(ss, k.replicaID)
	}
	return false, nil
}

func (m *model) snapshot(k member, index uint64) raftpb.Snapshot {
	return raftpb.Snapshot{
		ShardID: k.shardID, Index: index, Term: 1, OnDiskIndex: index,
		Membership: raftpb.Membership{Addresses: map[uint64]string{1: "a"}},
	}
}

func (m *model) commit(l *Log, k member, r *kept) error {
	if r.state.Term == 0 || r.last() <= r.state.Commit {
		return nil
	}
	r.state.Commit = r.last()
	return l.SaveRaftState([]raftpb.Update{{ShardID: k.shardID, ReplicaID: k.replicaID, State: r.state}}, 1)
}

// save makes a random step of Raft of several replicas.
func (m *model) save(l *Log) (lazy bool, err error) {
	var updates []raftpb.Update
	seen := make(map[member]bool)
	for range 1 + m.rnd.IntN(3) {
		k := m.member()
		if seen[k] {
			continue
		}
		seen[k] = true
		r := m.at(k)
		u := raftpb.Update{ShardID: k.shardID, ReplicaID: k.replicaID}
		if m.rnd.IntN(20) == 0 {
			if u.Snapshot = m.snapshot(k, r.last()+m.rnd.Uint64N(5)); u.Snapshot.Index > r.snapshot.Index {
				r.snapshot, r.first, r.entries = u.Snapshot, u.Snapshot.Index+1, nil
			}
		}
		// Entries follow, or take the place of some that a snapshot doesn't hold.
		from := max(r.last()+1-min(r.last(), m.rnd.Uint64N(4)*m.rnd.Uint64N(2)), r.first, r.snapshot.Index+1)
		n := m.rnd.Uint64N(6)
		if n > 0 {
			r.entries = r.entries[:from-r.first]
		}
		for i := range n {
			e := raftpb.Entry{Index: from + i, Term: r.state.Term + 1, Cmd: make([]byte, m.rnd.IntN(200))}
			for j := range e.Cmd {
				e.Cmd[j] = byte(m.rnd.Uint32())
			}
			u.EntriesToSave = append(u.EntriesToSave, e)
			r.entries = append(r.entries, e)
		}
		r.state = raftpb.State{Term: r.state.Term + 1, Vote: m.rnd.Uint64N(3), Commit: max(r.state.Commit, r.snapshot.Index)}
		u.State = r.state
		updates = append(updates, u)
	}
	return false, l.SaveRaftState(updates, 1)
}

// differs says how a log differs from what it should hold of a replica.
func differs(l *Log, k member, want *kept) string {
	ss, err := l.GetSnapshot(k.shardID, k.replicaID)
	if err != nil {
		return err.Error()
	}
	if d := cmp.Diff(want.snapshot, ss, ignored); d != "" {
		return "snapshot: " + d
	}
	bootstrap, err := l.GetBootstrapInfo(k.shardID, k.replicaID)
	if want.made != (err == nil) || err != nil && !errors.Is(err, raftio.ErrNoBootstrapInfo) {
		return fmt.Sprintf("bootstrap info: %v", err)
	}
	if d := cmp.Diff(want.bootstrap, bootstrap); d != "" {
		return "bootstrap info: " + d
	}
	rs, err := l.ReadRaftState(k.shardID, k.replicaID, ss.Index)
	if errors.Is(err, raftio.ErrNoSavedLog) && want.state == (raftpb.State{}) {
		return ""
	}
	if err != nil {
		return err.Error()
	}
	if rs.State.Term != want.state.Term || rs.State.Vote != want.state.Vote || rs.State.Commit != max(want.state.Commit, ss.Index) {
		return fmt.Sprintf("state %v, not %v", rs.State, want.state)
	}
	first := max(want.first, ss.Index+1)
	if last := rs.FirstIndex + rs.EntryCount - 1; rs.EntryCount > 0 && (rs.FirstIndex != first || last != want.last()) {
		return fmt.Sprintf("entries %d to %d, not %d to %d", rs.FirstIndex, last, first, want.last())
	}
	entries, _, err := l.IterateEntries(nil, 0, k.shardID, k.replicaID, first, want.last()+10, 1<<60)
	if err != nil {
		return err.Error()
	}
	var wanted []raftpb.Entry
	if first <= want.last() {
		wanted = want.entries[first-want.first:]
	}
	if len(entries) != len(wanted) {
		return fmt.Sprintf("%d entries from %d on, not %d", len(entries), first, len(wanted))
	}
	for i := range entries {
		if entries[i].Index != wanted[i].Index || entries[i].Term != wanted[i].Term || string(entries[i].Cmd) != string(wanted[i].Cmd) {
			return fmt.Sprintf("entry %d is another", wanted[i].Index)
		}
	}
	return ""
}

// check compares a log with the model.
func (m *model) check(t *testing.T, l *Log) {
	t.Helper()
	for k, want := range m.replicas {
		if d := differs(l, k, want); d != "" {
			t.Fatalf("%v: %s", k, d)
		}
	}
	nodes, err := l.ListNodeInfo()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if k := m.replicas[member{n.ShardID, n.ReplicaID}]; k == nil || !k.made {
			t.Fatalf("%v is listed", n)
		}
	}
}

var ignored = cmpopts.IgnoreUnexported(raftpb.Snapshot{})

// content reads a file.
func readFile(t *testing.T, fs vfs.FS, path string) []byte {
	t.Helper()
	f, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return b
}

func writeFile(t *testing.T, fs vfs.FS, path string, content []byte) {
	t.Helper()
	f, err := fs.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// files returns the paths of a log's segments, the oldest first.
func files(t *testing.T, fs vfs.FS) []string {
	t.Helper()
	numbers, err := list(fs, testDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	paths := make([]string, len(numbers))
	for i, n := range numbers {
		paths[len(numbers)-1-i] = fs.PathJoin(testDir, fileName(n))
	}
	return paths
}
