package mvcc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// TestConcurrent runs the applying goroutine, the sweeper, readers and streams of
// watchers at once. Every transaction writes one number to all keys, so that
// each answer and each batch must show one number.
func TestConcurrent(t *testing.T) {
	seed := rand.Uint64()
	if s := os.Getenv("LATCHKEY_MVCC_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("replay with LATCHKEY_MVCC_SEED=%d", seed)
	e := memEnv(t)
	names := []string{"c/a", "c/b", "c/d/e"}
	put := func(n int) *pb.TxnRequest {
		req := &pb.TxnRequest{}
		for _, k := range names {
			req.Success = append(req.Success, opPut(k, fmt.Sprintf("%0100d", n)))
		}
		return req
	}
	e.apply(func(w *Writer) { _, _ = w.Txn(put(0), Opts{}) })
	rounds := 3000
	if testing.Short() {
		rounds = 300
	}
	var done atomic.Bool
	var wg sync.WaitGroup
	start := func(i uint64, fn func(r *rand.Rand) error) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, i))
			for !done.Load() {
				if err := fn(r); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	start(1, func(*rand.Rand) error {
		_, err := e.s.Sweep(10)
		return err
	})
	for i := range uint64(2) {
		start(2+i, func(r *rand.Rand) error { return readTogether(e.s, r, len(names)) })
	}
	for i := range 2 {
		start(uint64(10+i), func(r *rand.Rand) error { return watchTogether(e.s, r, len(names), &done) })
	}
	r := rand.New(rand.NewPCG(seed, 99))
	for n := range rounds {
		e.apply(func(w *Writer) {
			if _, err := w.Txn(put(n), Opts{}); err != nil {
				t.Error(err)
			}
			if r.IntN(50) == 0 {
				if err := w.Compact(w.Rev() - int64(r.IntN(20))); err != nil && !errors.Is(err, ErrCompacted) {
					t.Error(err)
				}
			}
		})
	}
	done.Store(true)
	wg.Wait()
	if h := &e.s.hub; len(h.groups) != 0 || h.synced != 0 {
		t.Errorf("%d groups, %d watchers left", len(h.groups), h.synced)
	}
	e.sweepAll()
	if pins := e.s.state.Load().epoch.pins.Load(); pins != 0 {
		t.Errorf("%d pins left", pins)
	}
}

// readTogether reads all keys, now or at a past revision.
func readTogether(s *Store, r *rand.Rand, n int) error {
	v := s.View()
	defer v.Close()
	req := &pb.RangeRequest{Key: []byte("c/"), RangeEnd: []byte("c0")}
	if r.IntN(2) == 0 {
		low := max(v.Compacted(), 2)
		req.Revision = low + r.Int64N(v.Rev()-low+1)
	}
	resp, err := v.Range(background, req)
	if err != nil {
		return fmt.Errorf("range at %d of %d to %d: %w", req.Revision, v.Compacted(), v.Rev(), err)
	}
	if len(resp.Kvs) != n || resp.Header.Revision != v.Rev() {
		return fmt.Errorf("range at %d of %d: %v", req.Revision, v.Rev(), resp)
	}
	for _, kv := range resp.Kvs {
		if string(kv.Value) != string(resp.Kvs[0].Value) || kv.ModRevision != resp.Kvs[0].ModRevision {
			return fmt.Errorf("torn range at %d of %d: %v", req.Revision, v.Rev(), resp)
		}
	}
	return nil
}

// watchTogether follows all keys for a while, from a random revision on.
func watchTogether(s *Store, r *rand.Rand, n int, done *atomic.Bool) error {
	g := s.NewGroup()
	defer g.Close()
	next := max(s.Rev()-r.Int64N(30), 2)
	g.Add(1, WatchOptions{Key: []byte("c/"), End: []byte("c0"), Start: next, PrevKV: true})
	for range 1 + r.IntN(100) {
		b, ok, err := g.Poll()
		if err != nil {
			return err
		}
		if b.CompactRev != 0 {
			return nil
		}
		if !ok {
			if rev, ok := g.Progress(); ok && rev >= next {
				return fmt.Errorf("progress %d before %d was seen", rev, next)
			}
			if done.Load() {
				return nil
			}
			continue
		}
		if len(b.Events)%n != 0 {
			return fmt.Errorf("torn batch: %v", b)
		}
		for i, ev := range b.Events {
			if ev.Kv.ModRevision != next {
				return fmt.Errorf("revision %d instead of %d", ev.Kv.ModRevision, next)
			}
			if ev.PrevKv != nil && ev.PrevKv.ModRevision != next-1 {
				return fmt.Errorf("previous version of %d at %d", ev.Kv.ModRevision, ev.PrevKv.ModRevision)
			}
			if i%n == n-1 {
				next++
			}
		}
	}
	return nil
}

// What the store has resolved never falls, whatever is published at the same time.
func TestResolvedNeverFalls(t *testing.T) {
	e := memEnv(t)
	const rev, rounds = 1_000_000, 3000
	e.apply(func(w *Writer) {
		if _, err := w.Put(&pb.PutRequest{Key: []byte("k")}, Opts{Number: rev}); err != nil {
			t.Fatal(err)
		}
	})
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for resolved := int64(rev + 1); !done.Load(); resolved++ {
			e.s.Resolve(resolved)
			if got := e.s.Resolved(); got < resolved {
				t.Errorf("resolved %d, then %d", resolved, got)
				return
			}
		}
	})
	for n := range int64(rounds) {
		e.apply(func(w *Writer) {
			if err := w.Compact(n); err != nil {
				t.Error(err)
			}
		})
	}
	done.Store(true)
	wg.Wait()
}
