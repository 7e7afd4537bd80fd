package sim

import (
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

func TestSmoke(t *testing.T) {
	s := seed(t)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, options{seed: s, splits: fourShards})
		defer c.close()
		start := time.Now()
		for i := range 30 {
			for _, n := range c.nodes {
				for _, k := range []string{"a", "b", "c", "d"} {
					if _, err := n.running().router.Put(t.Context(), &pb.PutRequest{Key: []byte(k), Value: []byte{byte(i)}}); err != nil {
						t.Fatal(err)
					}
				}
				r, err := n.running().router.Range(t.Context(), &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z")})
				if err != nil || r.Count != 4 {
					t.Fatal(r, err)
				}
			}
		}
		t.Log(time.Since(start))
		if err := c.nodes[0].die(true, c.rnd); err != nil {
			t.Fatal(err)
		}
		if err := c.nodes[0].restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		r, err := c.nodes[0].running().router.Range(t.Context(), &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z")})
		t.Log(r, err)
	})
}
