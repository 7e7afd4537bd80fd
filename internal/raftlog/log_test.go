package raftlog

import (
	"errors"
	"io"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/lni/dragonboat/v4/raftpb"
	"github.com/lni/vfs"
)

// Whatever was saved is there, also after the log was opened again, over many segments of which
// most are emptied or used again.
func TestLogHoldsWhatWasSaved(t *testing.T) {
	for name, fs := range map[string]vfs.FS{"memory": vfs.NewMem(), "disk": nil} {
		t.Run(name, func(t *testing.T) {
			o := Options{FS: fs, Dir: testDir, SegmentBytes: 4 << 10}
			if fs == nil {
				o.FS, o.Dir = vfs.Default, filepath.Join(t.TempDir(), "log")
			}
			m := newModel(seed(t))
			var l *Log
			for range 40 {
				var err error
				if l, err = Open(o); err != nil {
					t.Fatal(err)
				}
				m.check(t, l)
				for range 100 {
					if _, err := m.step(l); err != nil {
						t.Fatal(err)
					}
				}
				m.check(t, l)
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				o.Made = true
			}
			if l.number < 80 {
				t.Errorf("only %d segments were made", l.number)
			}
			live := int64(0)
			for _, s := range l.segments {
				live += s.live
			}
			numbers, err := list(o.FS, o.Dir)
			if err != nil {
				t.Fatal(err)
			}
			if most := 3 + live*sparse/o.SegmentBytes; int64(len(numbers)) > most {
				t.Errorf("%d files for %d bytes of entries", len(numbers), live)
			}
		})
	}
}

// powerCut cuts the power of a file system in memory at one of the next fsyncs, which does not
// succeed any more.
type powerCut struct {
	t   *testing.T
	fs  *vfs.MemFS
	rnd *rand.Rand
	// left is how many fsyncs there are before; negative: the power is off.
	left int
}

func (p *powerCut) MaybeError(op vfs.Op) error {
	if op != vfs.OpSync || p.left < 0 {
		return nil
	}
	if p.left--; p.left < 0 {
		p.cut()
	}
	return nil
}

// cut leaves of each file any of the sectors that were written since its last fsync, and nothing
// of what is written from now on.
func (p *powerCut) cut() {
	p.left = -1
	const sector = 512
	now := make(map[string][]byte)
	for _, path := range files(p.t, p.fs) {
		now[path] = readFile(p.t, p.fs, path)
	}
	p.fs.ResetToSyncedState()
	keep := p.rnd.IntN(101)
	for _, path := range files(p.t, p.fs) {
		written := now[path]
		content := make([]byte, len(written))
		copy(content, readFile(p.t, p.fs, path))
		for at := 0; at < len(written); at += sector {
			if p.rnd.IntN(100) < keep {
				copy(content[at:min(at+sector, len(written))], written[at:])
			}
		}
		f, err := p.fs.OpenForAppend(path)
		if err == nil {
			_, err = f.WriteAt(content, 0)
			err = errors.Join(err, f.Sync(), f.Close())
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
	p.fs.SetIgnoreSyncs(true)
}

// restore gives the file system power again.
func (p *powerCut) restore() {
	p.fs.ResetToSyncedState()
	p.fs.SetIgnoreSyncs(false)
}

// A log that is only read holds what was saved, and changes nothing: neither the torn end nor the files that are not needed.
func TestReadOnly(t *testing.T) {
	fs := vfs.NewMem()
	if _, err := Open(Options{FS: fs, Dir: testDir, ReadOnly: true}); err == nil {
		t.Error("a log that is not there was read")
	}
	m, l := newModel(seed(t)), open(t, fs)
	for range 300 {
		if _, err := m.step(l); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	needless, err := fs.Create(fs.PathJoin(testDir, fileName(l.number+1)))
	if err == nil {
		_, err = needless.Write([]byte("begun, and torn"))
	}
	if err := errors.Join(err, needless.Close()); err != nil {
		t.Fatal(err)
	}
	before := filesOf(t, fs)
	for range 2 {
		l, err := Open(Options{FS: fs, Dir: testDir, ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		m.check(t, l)
		if err := l.RemoveNodeData(1, 1); !errors.Is(err, errReadOnly) {
			t.Errorf("a write: %v", err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(before, filesOf(t, fs)); d != "" {
			t.Fatal("the files have changed", d)
		}
	}
}

// filesOf returns the content of a log's files by their names.
func filesOf(t *testing.T, fs vfs.FS) map[string][]byte {
	t.Helper()
	names, err := fs.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]byte)
	for _, name := range names {
		f, err := fs.Open(fs.PathJoin(testDir, name))
		if err != nil {
			t.Fatal(err)
		}
		files[name], err = io.ReadAll(f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// What was acknowledged is there after a power cut at any fsync, and a torn end is never taken for
// damage.
func TestPowerCuts(t *testing.T) {
	n := seed(t)
	rnd := rand.New(rand.NewPCG(n, 1))
	for round := range uint64(60) {
		fs := vfs.NewStrictMem()
		m := newModel(n + round)
		for cut := range 6 {
			p := &powerCut{t: t, fs: fs, rnd: rnd, left: rnd.IntN(60)}
			l, err := Open(Options{FS: vfs.Wrap(fs, p), Dir: testDir, SegmentBytes: 4 << 10})
			before := m.clone()
			if p.left >= 0 {
				if err != nil {
					t.Fatalf("round %d, start %d: %v", round, cut, err)
				}
				m.check(t, l)
			}
			for p.left >= 0 {
				before = m.clone()
				if _, err := m.step(l); err != nil && p.left >= 0 {
					t.Fatal(err)
				}
			}
			if err == nil {
				_ = l.Close() // closes the files, or fails for want of power
			}
			p.restore()
			left := open(t, fs)
			after := m.clone()
			if m.replicas = survived(t, left, before, after); m.replicas == nil {
				t.Fatalf("round %d, power cut %d: the log holds neither what it held before the last step nor what it held after", round, cut)
			}
			if err := left.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// survived returns which of some states a log holds, or nil. A commit index counts as it is: it
// need not be durable.
func survived(t *testing.T, l *Log, allowed ...map[member]*kept) map[member]*kept {
	t.Helper()
	why := ""
	for _, state := range allowed {
		for _, replicas := range allowed {
			for k := range replicas {
				if state[k] == nil {
					state[k] = &kept{first: 1}
				}
			}
		}
		same := true
		for k, want := range state {
			if rs, err := l.ReadRaftState(k.shardID, k.replicaID, 0); err == nil && rs.State.Commit < want.state.Commit {
				want.state.Commit = rs.State.Commit
			}
			if d := differs(l, k, want); d != "" {
				same, why = false, why+k.String()+": "+d+"\n"
			}
		}
		if same {
			return state
		}
	}
	t.Log(why)
	return nil
}

// A bit that changed in what had been fsynced is damage, wherever it is but in the last frame.
func TestDamageIsToldFromTornTail(t *testing.T) {
	n := seed(t)
	m := newModel(n)
	fs := vfs.NewMem()
	l := open(t, fs)
	for range 150 {
		if _, err := m.step(l); err != nil {
			t.Fatal(err)
		}
	}
	update := raftpb.Update{ShardID: 9, ReplicaID: 9, State: raftpb.State{Term: 1}}
	if err := l.SaveRaftState([]raftpb.Update{update}, 1); err != nil {
		t.Fatal(err)
	}
	ends := make(map[string]int64)
	for _, s := range l.segments {
		ends[s.path] = s.end
	}
	last := l.last()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if len(ends) < 2 {
		t.Fatalf("%d segments", len(ends))
	}
	// What the last frame does not say to have been fsynced may be torn.
	data := readFile(t, fs, last.path)
	tail := int64(0)
	for at := int64(0); at < ends[last.path]; {
		f, ok := readFrame(data, at, last.id)
		if !ok {
			t.Fatal("the last segment can't be read")
		}
		tail, at = int64(f.synced), f.next
	}
	rnd := rand.New(rand.NewPCG(n, 2))
	flips := 0
	for path, end := range ends {
		for at := int64(rnd.IntN(40)); at < end; at += 1 + rnd.Int64N(60) {
			copied := vfs.NewMem()
			if err := copied.MkdirAll(testDir, 0o755); err != nil {
				t.Fatal(err)
			}
			for other := range ends {
				content := readFile(t, fs, other)[:ends[other]]
				if other == path {
					content[at] ^= 1 << rnd.IntN(8)
				}
				writeFile(t, copied, other, content)
			}
			back, err := Open(Options{FS: copied, Dir: testDir, Made: true})
			if err == nil {
				err = back.Close()
				if path == last.path && at >= tail || inPadding(l, path, readFile(t, fs, path), at) {
					continue
				}
				t.Fatalf("a bit at %d of %s changed (%d bytes), and the log opens: %v", at, path, end, err)
			}
			if !errors.Is(err, ErrDamaged) {
				t.Fatalf("a bit at %d of %s changed: %v", at, path, err)
			}
			flips++
		}
	}
	if flips < 50 {
		t.Errorf("only %d changes were found", flips)
	}
}

// inPadding reports whether an offset in a segment is between two frames, where nothing is read.
func inPadding(l *Log, path string, content []byte, at int64) bool {
	for _, s := range l.segments {
		if s.path != path {
			continue
		}
		for pos := int64(0); pos < s.end; {
			f, ok := readFrame(content, pos, s.id)
			if !ok {
				return false
			}
			if at >= f.at+int64(len(f.payload)) && at < f.next {
				return true
			}
			pos = f.next
		}
	}
	return false
}

// A log whose files are gone, one or all, is refused.
func TestMissingFiles(t *testing.T) {
	fs := vfs.NewMem()
	m := newModel(seed(t))
	l := open(t, fs)
	for len(l.segments) < 3 {
		if _, err := m.step(l); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	paths := files(t, fs)
	for _, s := range l.segments[:1] {
		if err := fs.Remove(s.path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(Options{FS: fs, Dir: testDir, Made: true}); !errors.Is(err, ErrDamaged) || !errors.Is(err, errMissing) {
		t.Errorf("without the first of %d: %v", len(paths), err)
	}
	for _, path := range files(t, fs) {
		if err := fs.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(Options{FS: fs, Dir: testDir, Made: true}); !errors.Is(err, errMissing) {
		t.Errorf("without any: %v", err)
	}
}

// syncs counts fsyncs, and holds them up until it is told to go on.
type syncs struct {
	mu    sync.Mutex
	n     int
	hold  chan struct{}
	fails error
}

func (s *syncs) MaybeError(op vfs.Op) error {
	if op != vfs.OpSync {
		return nil
	}
	s.mu.Lock()
	s.n++
	hold, fails := s.hold, s.fails
	s.mu.Unlock()
	if hold != nil {
		<-hold
	}
	return fails
}

func (s *syncs) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

func entry(index uint64) []raftpb.Entry {
	return []raftpb.Entry{{Index: index, Term: 1, Cmd: []byte("x")}}
}

// A step is fsynced once, and not at all if it moves only the commit index.
func TestFsyncs(t *testing.T) {
	s := &syncs{}
	l := open(t, vfs.Wrap(vfs.NewMem(), s))
	save := func(u raftpb.Update, want int) {
		t.Helper()
		before := s.count()
		u.ShardID, u.ReplicaID = 1, 1
		if err := l.SaveRaftState([]raftpb.Update{u}, 1); err != nil {
			t.Fatal(err)
		}
		if got := s.count() - before; got != want {
			t.Errorf("%d fsyncs, want %d: %v", got, want, u)
		}
	}
	save(raftpb.Update{State: raftpb.State{Term: 1}}, 1)
	save(raftpb.Update{State: raftpb.State{Term: 1, Vote: 2}}, 1)
	save(raftpb.Update{State: raftpb.State{Term: 1, Vote: 2}, EntriesToSave: entry(1)}, 1)
	save(raftpb.Update{State: raftpb.State{Term: 1, Vote: 2, Commit: 1}}, 0)
	save(raftpb.Update{State: raftpb.State{Term: 1, Vote: 2, Commit: 1}}, 0)
	save(raftpb.Update{Snapshot: raftpb.Snapshot{Index: 5, Term: 1}}, 1)
	save(raftpb.Update{}, 0)
	if rs, err := l.ReadRaftState(1, 1, 5); err != nil || rs.State.Commit != 5 {
		t.Errorf("%v, %v: the snapshot's index is committed", rs, err)
	}
}

// Steps that come while the disk is busy share the next fsync.
func TestStepsShareFsyncs(t *testing.T) {
	s := &syncs{}
	l := open(t, vfs.Wrap(vfs.NewMem(), s))
	hold := make(chan struct{})
	s.mu.Lock()
	s.hold = hold
	s.mu.Unlock()
	before := s.count()
	var wg sync.WaitGroup
	const workers = 8
	for i := range uint64(workers) {
		wg.Go(func() {
			if err := l.SaveRaftState([]raftpb.Update{{ShardID: i, ReplicaID: 1, EntriesToSave: entry(1), State: raftpb.State{Term: 1}}}, i); err != nil {
				t.Error(err)
			}
		})
	}
	for made := uint64(0); made < workers; {
		l.mu.Lock()
		made = l.made
		l.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	close(hold)
	wg.Wait()
	if got := s.count() - before; got > 2 {
		t.Errorf("%d fsyncs for %d steps, all but one of which came while the first ran", got, workers)
	}
	for i := range uint64(workers) {
		if e, _, err := l.IterateEntries(nil, 0, i, 1, 1, 2, 0); err != nil || len(e) != 1 {
			t.Errorf("shard %d: %v, %v", i, e, err)
		}
	}
}

// After a write that failed nothing more is written: what the disk has can't be known.
func TestFailedWriteEndsTheLog(t *testing.T) {
	s := &syncs{}
	l := open(t, vfs.Wrap(vfs.NewMem(), s))
	s.mu.Lock()
	s.fails = errors.New("disk")
	s.mu.Unlock()
	update := []raftpb.Update{{ShardID: 1, ReplicaID: 1, EntriesToSave: entry(1), State: raftpb.State{Term: 1}}}
	if err := l.SaveRaftState(update, 1); !errors.Is(err, s.fails) {
		t.Errorf("a failed fsync: %v", err)
	}
	s.mu.Lock()
	failed := s.fails
	s.fails = nil
	s.mu.Unlock()
	if err := l.SaveRaftState(update, 1); !errors.Is(err, failed) {
		t.Errorf("after a failed fsync: %v", err)
	}
	if err := l.SaveSnapshots([]raftpb.Update{{ShardID: 1, ReplicaID: 1, Snapshot: raftpb.Snapshot{Index: 1, Term: 1}}}); !errors.Is(err, failed) {
		t.Errorf("after a failed fsync: %v", err)
	}
}

// A value that looks like a frame is none: behind a torn frame it is no sign of damage.
func TestValuesAreNoFrames(t *testing.T) {
	const number, id = 7, 7<<randomBits | 0x12345678
	for _, guess := range []uint64{number, number << randomBits, number<<randomBits | 1, id} {
		data := endFrame(append(beginFrame(nil), "checkpoint"...), 0, id, 0)
		start := len(data)
		data = beginFrame(data)
		for shift := range frameAlign {
			data = append(data, make([]byte, shift)...)
			at := len(data)
			data = endFrame(beginFrame(data), at, guess, 1<<40)
		}
		data = endFrame(data, start, id, uint64(start))
		data[start] ^= 1
		if _, ok := readFrame(data, int64(start), id); ok {
			t.Fatal("a torn frame is read")
		}
		// Who knows the id can make one: the test would see it.
		if at, found := findSynced(data, int64(start), number, id); found != (guess == id) {
			t.Errorf("with the id guessed as %x, right is %x: taken for a frame at %d: %v", guess, uint64(id), at, found)
		}
	}
}
