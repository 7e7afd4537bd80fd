package shard

import (
	"errors"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// A fence turns away what was checked earlier, and only while it is closed.
func TestFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd, _ := c.leader(0)
		nd.grant(t, 7, 60)
		requests := []struct {
			kind    Kind
			request proto.Message
		}{
			{KindPut, &pb.PutRequest{Key: []byte("k")}},
			{KindDeleteRange, &pb.DeleteRangeRequest{Key: []byte("k")}},
			{KindTxn, &pb.TxnRequest{}},
		}
		plain, guarded := Guard{}, func(epoch uint64) Guard { return Guard{Epoch: epoch} }
		for _, step := range []struct {
			raise Fence
			fence Fence
			pass  []Guard
			turn  []Guard
		}{
			{Fence{}, Fence{}, []Guard{plain, guarded(1)}, nil},
			{Fence{3, true}, Fence{3, true}, []Guard{guarded(3), guarded(4)}, []Guard{plain, guarded(1), guarded(2)}},
			{Fence{2, false}, Fence{3, true}, []Guard{guarded(3)}, []Guard{plain, guarded(2)}},
			{Fence{3, false}, Fence{3, true}, []Guard{guarded(3)}, []Guard{plain, guarded(2)}},
			{Fence{4, false}, Fence{4, false}, []Guard{plain, guarded(2), guarded(9)}, nil},
			{Fence{5, true}, Fence{5, true}, []Guard{guarded(5)}, []Guard{plain, guarded(4)}},
		} {
			if _, err := nd.data.Raise(t.Context(), step.raise); err != nil {
				t.Fatal(err)
			}
			if got := nd.data.Fence(); got != step.fence {
				t.Errorf("fence %+v after %+v, want %+v", got, step.raise, step.fence)
			}
			for _, r := range requests {
				for _, g := range step.pass {
					if err := nd.sendAs(t, g, r.kind, r.request); err != nil {
						t.Errorf("%+v: kind %d of guard %+v: %v", step.fence, r.kind, g, err)
					}
				}
				for _, g := range step.turn {
					if err := nd.sendAs(t, g, r.kind, r.request); !errors.Is(err, ErrOutdated) {
						t.Errorf("%+v: kind %d of guard %+v: %v", step.fence, r.kind, g, err)
					}
				}
			}
		}
		if err := nd.sendAs(t, plain, KindLeaseRevoke, &pb.LeaseRevokeRequest{ID: 7}); !errors.Is(err, ErrOutdated) {
			t.Errorf("the end of a lease passed the fence: %v", err)
		}
		nd.grant(t, 8, 60)
		if err := nd.sendAs(t, plain, KindCompact, &pb.CompactionRequest{Revision: 1}); err != nil {
			t.Errorf("compaction: %v", err)
		}
	})
}

// sendAs sends a request, without a guard if that is the zero one.
func (nd *testNode) sendAs(tb testing.TB, g Guard, kind Kind, request proto.Message) error {
	tb.Helper()
	var err error
	if g.Epoch == 0 {
		_, err = nd.data.Write(tb.Context(), nil, kind, request)
	} else {
		_, err = nd.data.Write(tb.Context(), &g, kind, request)
	}
	return err
}

// Whose keys hang on a lease is looked at when the command applies.
func TestGuardOfLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd, _ := c.leader(0)
		nd.grant(t, 1, 60)
		mine := keys.NewSet(keys.Span{Start: []byte("mine/"), End: []byte("mine0")})
		put := &pb.PutRequest{Key: []byte("mine/a"), Lease: 1}
		send := func(kind Kind, request proto.Message, leases ...int64) error {
			return nd.sendAs(t, Guard{Epoch: 1, Leases: leases, Writable: mine}, kind, request)
		}
		if err := send(KindPut, put, 1, 2); err != nil {
			t.Errorf("put with a lease without keys: %v", err)
		}
		if err := send(KindPut, put, 1); err != nil {
			t.Errorf("put with a lease whose keys are one's own: %v", err)
		}
		nd.put(t, "other", 1)
		if err := send(KindPut, put, 1); !errors.Is(err, ErrForbidden) {
			t.Errorf("put with a lease with another's key: %v", err)
		}
		if err := send(KindLeaseRevoke, &pb.LeaseRevokeRequest{ID: 1}, 1); !errors.Is(err, ErrForbidden) {
			t.Errorf("end of a lease with another's key: %v", err)
		}
		if err := send(KindLeaseRevoke, &pb.LeaseRevokeRequest{ID: 1}); err != nil {
			t.Errorf("end of a lease whose keys do not matter: %v", err)
		}
		if n := nd.count(t, "\x00", "\x00"); n != 0 {
			t.Errorf("%d keys are left", n)
		}
	})
}

// While a snapshot takes the place of the state, the leases are there before their keys:
// nobody may take them for leases without any.
func TestKeysOfALeaseAreThereDuringReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd, _ := c.leader(0)
		nd.grant(t, 1, 60)
		nd.put(t, "other", 1)
		var mine bool
		asked := make(chan struct{})
		nd.data.replica.Between(func() {
			if err := nd.data.leases.Reload(); err != nil {
				t.Error(err)
			}
			go func() {
				defer close(asked)
				mine = nd.data.EveryKey(1, func([]byte) bool { return false })
			}()
			for range 10_000 {
				runtime.Gosched()
			}
			nd.data.attach()
		})
		<-asked
		if mine {
			t.Error("a lease with another's key was taken for one without keys")
		}
	})
}

// A replica that gets its state by snapshot gets the fence with it.
func TestFenceSurvivesReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd, _ := c.leader(0)
		want := Fence{Epoch: 300, Closed: true}
		if _, err := nd.data.Raise(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		nd.data.fence.Store(&Fence{})
		nd.data.BeginReload()
		if err := nd.data.Reload(); err != nil {
			t.Fatal(err)
		}
		if got := nd.data.Fence(); got != want {
			t.Errorf("fence %+v, want %+v", got, want)
		}
	})
}

func TestGuardEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := Guard{Epoch: rapid.Uint64().Draw(t, "epoch"), Leases: rapid.SliceOf(rapid.Int64()).Draw(t, "leases")}
		if len(g.Leases) == 0 {
			g.Leases = nil
		} else if rapid.Bool().Draw(t, "some") {
			g.Writable = keys.NewSet(keys.Point([]byte("\x00\x01")), keys.Span{Start: []byte("b"), End: []byte("c")})
		}
		whole := appendGuard(nil, &g)
		got, rest, err := cutGuard(append(whole, 1, 2))
		if err != nil || len(rest) != 2 {
			t.Fatalf("%d bytes left: %v", len(rest), err)
		}
		if d := cmp.Diff(g, got); d != "" {
			t.Fatalf("(-want +got):\n%s", d)
		}
		for n := range whole {
			if _, rest, err := cutGuard(whole[:n]); err == nil && len(rest) > 0 {
				t.Fatalf("%d of %d bytes left a command", n, len(whole))
			}
		}
	})
}

func TestFenceEncoding(t *testing.T) {
	for _, f := range []Fence{{}, {1, true}, {1 << 40, false}} {
		whole := appendFence(nil, f)
		if got, err := decodeFence(whole); err != nil || got != f {
			t.Errorf("%+v is read as %+v: %v", f, got, err)
		}
		for _, bad := range [][]byte{whole[:len(whole)-1], append(whole[:len(whole):len(whole)], 0), append(whole[:len(whole)-1:len(whole)-1], 2)} {
			if got, err := decodeFence(bad); err == nil {
				t.Errorf("%x is read as %+v", bad, got)
			}
		}
	}
}
