package raft

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestReplicasAgreeOverFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		a, term := c.leader(0)
		for i := uint64(1); i <= 100; i++ {
			v, err := c.add(a, "x")
			if err != nil || v != i {
				t.Fatalf("add %d: %d, %v", i, v, err)
			}
		}
		c.net.isolate(c.addr(a.id))
		b, term2 := c.leader(term)
		if v, err := c.add(b, "x"); err != nil || v != 101 {
			t.Fatalf("add at successor: %d, %v", v, err)
		}
		if _, err := c.add(a, "x"); err == nil {
			t.Fatal("a deposed leader acknowledged a write")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := a.r.Confirm(ctx); err == nil {
			t.Fatal("a deposed leader confirmed")
		}
		c.net.heal()
		if v, err := c.add(b, "x"); err != nil || v != 102 {
			t.Fatalf("add after healing: %d, %v", v, err)
		}
		if term2 <= term {
			t.Fatalf("term %d after %d", term2, term)
		}
	})
}

// loads counts the snapshots that replicas began and ended to load.
type loads struct {
	unobserved

	begun, ended atomic.Int32
}

func (l *loads) SnapshotLoading(begun bool) {
	if begun {
		l.begun.Add(1)
	} else {
		l.ended.Add(1)
	}
}

func TestSnapshotHealsDeposedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		o := &loads{}
		c.observer = o
		for _, nd := range c.nodes {
			c.stop(nd)
			c.start(nd)
		}
		a, term := c.leader(0)
		if _, err := c.add(a, "x"); err != nil {
			t.Fatal(err)
		}
		c.net.isolate(c.addr(a.id))
		waiting := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_, err := a.r.Propose(ctx, kindAdd, []byte("x"))
			waiting <- err
		}()
		b, _ := c.leader(term)
		for range 50 {
			if _, err := c.add(b, "y"); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := b.host.snapshot(ctx, 1); err != nil {
			t.Fatal(err)
		}
		if _, err := c.add(b, "y"); err != nil {
			t.Fatal(err)
		}
		c.net.heal()
		if err := <-waiting; !errors.Is(err, ErrTimeout) {
			t.Fatalf("waiting call: %v, want the unknown outcome", err)
		}
		for a.m.get("y") != 51 {
			time.Sleep(time.Millisecond)
		}
		if got := a.m.get("x"); got != 1 {
			t.Fatalf("x = %d, want 1", got)
		}
		synctest.Wait()
		if begun, ended := o.begun.Load(), o.ended.Load(); begun == 0 || begun != ended {
			t.Errorf("%d loads of snapshots begun, %d ended", begun, ended)
		}
	})
}
