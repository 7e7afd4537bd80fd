package mvcc

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/testing/protocmp"
)

// TestCreationsGrow asks for first and last created keys before there is an index of creations, while
// it grows among writes, and when it is whole.
func TestCreationsGrow(t *testing.T) {
	e := newEnv(t, vfs.NewMem())
	defer e.close()
	rng := rand.New(rand.NewPCG(1, 2))
	key := func() []byte { return fmt.Appendf(nil, "d%d/%05d", rng.IntN(4), rng.IntN(10_000)) }
	change := func(n int) {
		t.Helper()
		e.apply(func(w *Writer) {
			for range n {
				var err error
				if rng.IntN(3) == 0 {
					_, err = w.DeleteRange(&pb.DeleteRangeRequest{Key: key()}, Opts{})
				} else {
					_, err = w.Put(&pb.PutRequest{Key: key()}, Opts{})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	for range 30 {
		change(1000)
	}
	if e.s.creations.tree != nil {
		t.Error("an index that nobody asked for")
	}
	partly := 0
	for !e.s.creations.whole || partly == 0 {
		checkCreations(t, e)
		if t.Failed() {
			return
		}
		change(100)
		if tree := e.s.creations.tree; tree != nil && !e.s.creations.whole {
			partly++
		}
		if partly > 10 {
			t.Fatal("the index does not grow")
		}
	}
	for range 3 {
		change(100)
		checkCreations(t, e)
	}
	if err := e.s.Reload(); err != nil {
		t.Fatal(err)
	}
	checkCreations(t, e)
}

// checkCreations compares what requests by creation answer with what they would without an index,
// and the index with the current keys.
func checkCreations(t *testing.T, e *env) {
	t.Helper()
	v := e.s.View()
	defer v.Close()
	all, err := v.Range(background, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		dir := fmt.Sprintf("d%d/", i)
		for _, order := range []pb.RangeRequest_SortOrder{pb.RangeRequest_ASCEND, pb.RangeRequest_DESCEND} {
			req := firstCreated(dir)
			req.SortOrder, req.Limit = order, 3
			req.MaxCreateRevision = v.Rev() * int64(i) / 3
			want, err := RangeOver(background, all.Kvs, v.Rev(), req)
			if err != nil {
				t.Fatal(err)
			}
			got, err := v.Range(background, req)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
				t.Errorf("%v of %s: %s", order, dir, d)
			}
		}
	}
	c, below := &e.s.creations, 0
	for _, kv := range all.Kvs {
		if !c.covers(kv.Key) {
			continue
		}
		below++
		if _, ok := c.tree.Get(newCreation(&item{key: kv.Key, create: kv.CreateRevision})); !ok {
			t.Errorf("no creation of %s", kv.Key)
		}
	}
	if c.tree != nil && c.tree.Len() != below {
		t.Errorf("%d creations of %d keys", c.tree.Len(), below)
	}
	if whole := c.whole; whole != (v.creations != nil) {
		t.Errorf("whole: %v, published: %v", whole, v.creations != nil)
	}
}
