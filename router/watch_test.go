package router

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/system"
)

// told waits for progress, of all watchers or of one, and for the events before it.
func told(t *testing.T, g *WatchGroup, progress func() (int64, bool, bool)) (int64, error) {
	t.Helper()
	for deadline := time.After(time.Minute); ; {
		for {
			if _, more, err := g.Poll(); err != nil {
				return 0, err
			} else if !more {
				break
			}
		}
		rev, ok, later := progress()
		switch {
		case ok:
			return rev, nil
		case !later:
			return 0, errors.New("there is to be none")
		}
		select {
		case <-g.Ready():
		case <-deadline:
			return 0, errors.New("none within a minute")
		}
	}
}

// A watch that starts behind what clients have seen makes progress, though nothing
// has happened there in its shard.
func TestProgressOfStartsThatIdleShardsHaveNotReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		for range 5 {
			if _, err := s.Put(t.Context(), put("z")); err != nil {
				t.Fatal(err)
			}
		}
		for name, o := range map[string]mvcc.WatchOptions{
			"one shard":   {Key: []byte("a"), Start: 4},
			"both shards": {Key: []byte("a"), End: []byte{0}, Start: 4},
		} {
			g := s.NewWatchGroup()
			defer g.Close()
			g.Add(1, o)
			if rev, err := told(t, g, g.Progress); err != nil || rev < 6 {
				t.Errorf("%s: %d, %v", name, rev, err)
			}
			g.Add(2, mvcc.WatchOptions{Key: []byte("z"), Start: 1000})
			if _, ok, later := g.Progress(); ok || later {
				t.Errorf("%s: progress beside a watch of the future: %v %v", name, ok, later)
			}
			if rev, err := told(t, g, func() (int64, bool, bool) { return g.ProgressOf(1) }); err != nil || rev < 6 {
				t.Errorf("%s: its own: %d, %v", name, rev, err)
			}
		}
	})
}

// Progress of a watch of several shards is put off, not dropped, while there are events
// that it has still to hand out.
func TestProgressBehindEventsOfSeveralShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		g := s.NewWatchGroup()
		defer g.Close()
		g.Add(1, mvcc.WatchOptions{Key: []byte("a"), End: []byte{0}})
		if _, err := s.Put(t.Context(), put("a")); err != nil {
			t.Fatal(err)
		}
		if _, ok, later := g.Progress(); ok || !later {
			t.Errorf("progress with an event to come: %v, later %v", ok, later)
		}
		if rev, err := told(t, g, g.Progress); err != nil || rev != 2 {
			t.Errorf("progress behind the event: %d, %v", rev, err)
		}
	})
}

// first waits for the first event of a group.
func first(t *testing.T, g *WatchGroup) int64 {
	t.Helper()
	return batch(t, g).Events[0].Kv.ModRevision
}

// batch waits for the next batch of a group.
func batch(t *testing.T, g *WatchGroup) mvcc.WatchBatch {
	t.Helper()
	for {
		b, ok, err := g.Poll()
		switch {
		case err != nil:
			t.Fatal(err)
		case ok:
			return b
		}
		<-g.Ready()
	}
}

// A watch from now has every event after the revision that its creation was answered
// with, and none from before, whatever happens in its shards meanwhile.
func TestWatchFromNowBeginsBehindItsHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		ctx, cancel := context.WithCancel(t.Context())
		var writers sync.WaitGroup
		for _, key := range []string{"a", "z"} {
			for range 4 {
				writers.Go(func() {
					for ctx.Err() == nil {
						if _, err := s.Put(t.Context(), put(key)); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
		}
		watches := map[string]mvcc.WatchOptions{
			"one shard":   {Key: []byte("a")},
			"both shards": {Key: []byte("a"), End: []byte{0}},
		}
		began := make(map[string]map[int64]int64)
		for name, o := range watches {
			began[name] = make(map[int64]int64)
			for range 500 {
				g := s.NewWatchGroup()
				rev := g.Add(1, o)
				began[name][rev] = first(t, g)
				g.Close()
			}
		}
		cancel()
		writers.Wait()
		for name, o := range watches {
			all := history(t, s, o)
			for rev, got := range began[name] {
				at, _ := slices.BinarySearch(all, rev+1)
				if at == len(all) || all[at] != got {
					t.Errorf("%s: a watch from %d begins with %d, behind it are %v", name, rev, got, all[at:min(at+3, len(all))])
				}
			}
		}
	})
}

// history returns the revisions of all events that a watch from the beginning gets.
func history(t *testing.T, s *testCluster, o mvcc.WatchOptions) (revs []int64) {
	t.Helper()
	o.Start = 1
	g := s.NewWatchGroup()
	defer g.Close()
	g.Add(1, o)
	for last := s.Revision(); ; {
		b, ok, err := g.Poll()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range b.Events {
			revs = append(revs, e.Kv.ModRevision)
		}
		if rev, done, _ := g.Progress(); !ok && done && rev >= last {
			return revs
		}
		if !ok {
			<-g.Ready()
		}
	}
}

// busySystem runs a function whenever it is asked for the state of the cluster.
type busySystem struct {
	System
	busy func()
}

func (m busySystem) State() *system.State {
	m.busy()
	return m.System.State()
}

// What happens while a watch from now is made is no history that it needs: writes and
// compactions meanwhile don't end it.
func TestWatchFromNowIsNotCompactedAtBirth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		system := s.system
		// Here the shards move on and sweep, all that they have but the last revision.
		busy := func() {
			for range 3 {
				for _, key := range []string{"a", "z"} {
					if _, err := s.Put(t.Context(), put(key)); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, d := range s.shards {
				if err := d.SweepTo(t.Context(), s.Revision()); err != nil {
					t.Fatal(err)
				}
			}
		}
		for name, o := range map[string]mvcc.WatchOptions{
			"one shard":   {Key: []byte("a")},
			"both shards": {Key: []byte("a"), End: []byte{0}},
		} {
			for at := 1; at <= 2; at++ {
				calls := 0
				s.system = busySystem{system, func() {
					if calls++; calls == at {
						busy()
					}
				}}
				g := s.NewWatchGroup()
				defer g.Close()
				rev := g.Add(1, o)
				s.system = system
				wrote, err := s.Put(t.Context(), put("a"))
				if err != nil {
					t.Fatal(err)
				}
				b := batch(t, g)
				if b.CompactRev != 0 || b.Events[0].Kv.ModRevision != wrote.Header.Revision {
					t.Errorf("%s: a watch from %d begins with %+v, expected %d", name, rev, b, wrote.Header.Revision)
				}
			}
		}
	})
}
