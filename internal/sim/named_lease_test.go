package sim

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/mvcc"
)

// A lease with a key on another shard ends, the call that has the key deleted is made
// twice, and the id is granted anew before the second arrives. What hangs on the new
// lease stays. So it does where leases end shard by shard.
func TestRepeatedEndOfAnEarlierGrant(t *testing.T) {
	for name, narrow := range map[string]bool{"Finish": false, "Drop": true} {
		t.Run(name, func(t *testing.T) {
			bubbleOf(t, options{seed: seed(t), splits: fourShards, snapshotEntries: 60, narrow: narrow}, func(c *cluster) {
				t := c.tb
				id := c.leaseAt(shardA)
				c.place(shardB, c.nodes[1])
				var ends calls
				c.setInterfere(func(k call) interference {
					if k.name == name {
						ends.next()
						return interference{again: 300 * time.Millisecond}
					}
					return interference{}
				})
				p := c.node(3)
				p.grant(t, id, 60)
				if err := p.attach(t, "b/1", id); err != nil {
					t.Fatal(err)
				}
				p.revoke(t, id)
				if found, _ := p.read(t, "b/1", ""); len(found) > 0 {
					t.Error("the lease was revoked, and its key is there")
				}
				p.grant(t, id, 60)
				if err := p.attach(t, "b/2", id); err != nil {
					t.Errorf("the lease is granted, and a put: %v", err)
				}
				time.Sleep(400 * time.Millisecond)
				if ends.made() == 0 {
					c.unshown("no call to repeat")
				}
				if found, _ := p.read(t, "b/2", ""); len(found) != 1 {
					t.Error("the repeated end of the first grant took a key of the second")
				}
			})
		})
	}
}

// slowRegistration has the answer to the first registration of a lease take long.
func (c *cluster) slowRegistration(d time.Duration) {
	var first calls
	c.setInterfere(func(k call) interference {
		if k.name == "Register" && first.next() == 1 {
			return interference{after: d}
		}
		return interference{}
	})
}

// A put has been told by the lease's home that the lease is there. Before the answer
// arrives the lease ends, everywhere. The put must not bring the lease back.
func TestRegistrationOlderThanTheEnd(t *testing.T) {
	bubble(t, func(c *cluster) { lateRegistration(c.tb, c, func() {}) })
}

// Here the shard has even changed its leader twice, which drops what it knew of ends.
func TestRegistrationOfAnEarlierTerm(t *testing.T) {
	bubble(t, func(c *cluster) {
		lateRegistration(c.tb, c, func() {
			c.place(shardB, c.nodes[2])
			c.place(shardB, c.nodes[1])
		})
	})
}

func lateRegistration(tb testing.TB, c *cluster, meanTime func()) {
	tb.Helper()
	id := c.leaseAt(shardA)
	c.place(shardB, c.nodes[1])
	c.node(1).grant(tb, id, 60)
	c.slowRegistration(150 * time.Millisecond)
	put := meanwhile(func() (*pb.PutResponse, error) {
		return c.node(2).router.Put(tb.Context(), &pb.PutRequest{Key: []byte("b/x"), Lease: id})
	})
	time.Sleep(10 * time.Millisecond)
	began := time.Now()
	c.node(1).revoke(tb, id)
	meanTime()
	if time.Since(began) > 130*time.Millisecond {
		c.unshown("the end took %v", time.Since(began))
	}
	if _, err := put.wait(); !errors.Is(err, mvcc.ErrLeaseNotFound) {
		tb.Errorf("put with a lease that has ended: %v", err)
	}
	if found, _ := c.node(3).read(tb, "b/x", ""); len(found) > 0 {
		tb.Errorf("a key hangs on a lease that is gone: %v", found["b/x"])
	}
}

// A lease that nobody knows does not matter in a branch that is not taken.
func TestUnknownLeaseInTheOtherBranch(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		id := c.leaseAt(shardA)
		put := wrapPut(&pb.PutRequest{Key: []byte("b/x"), Lease: id})
		resp, err := c.node(2).router.Txn(t.Context(), &pb.TxnRequest{
			Success: []*pb.RequestOp{wrapPut(&pb.PutRequest{Key: []byte("b/y")})}, Failure: []*pb.RequestOp{put},
		})
		if err != nil || !resp.Succeeded {
			t.Errorf("%v, %v", resp, err)
		}
		if _, err := c.node(2).router.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{put}}); !errors.Is(err, mvcc.ErrLeaseNotFound) {
			t.Errorf("in the branch that is taken: %v", err)
		}
	})
}

// A transaction puts with a lease if there is a marker. When the lease's home is asked
// there is neither; both come, the lease first, before the answer arrives. Whoever
// sees the marker must see the lease.
func TestMarkerSeenThenLeaseUnknown(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		id := c.leaseAt(shardA)
		c.place(shardB, c.nodes[1])
		c.slowRegistration(50 * time.Millisecond)
		txn := meanwhile(func() (*pb.TxnResponse, error) {
			return c.node(2).router.Txn(t.Context(), &pb.TxnRequest{
				Compare: []*pb.Compare{{Key: []byte("b/marker"), Target: pb.Compare_VERSION, Result: pb.Compare_GREATER, TargetUnion: &pb.Compare_Version{}}},
				Success: []*pb.RequestOp{wrapPut(&pb.PutRequest{Key: []byte("b/x"), Lease: id})},
				// What does not write is no command.
				Failure: []*pb.RequestOp{wrapDelete(&pb.DeleteRangeRequest{Key: []byte("b/none")})},
			})
		})
		time.Sleep(10 * time.Millisecond)
		c.node(3).grant(t, id, 60)
		c.node(3).put(t, "b/marker", "1")
		resp, err := txn.wait()
		if err != nil || !resp.Succeeded {
			t.Errorf("%v, %v", resp, err)
		}
	})
}

// A transaction uses one lease if there is a marker and another if there is none. It is
// turned away for the other, whose home does not know it. The homes are asked again, and
// before the last has answered the first lease is granted, then the marker put. That the
// command was turned away before does not make it the first lease's end.
func TestMarkerSeenThenTheOtherLeaseUnknown(t *testing.T) {
	for origin := uint64(2); origin <= 3; origin++ {
		bubble(t, func(c *cluster) {
			t := c.tb
			c.place(shardB, c.nodes[1])
			ids := c.leasesAt(shardA, 2)
			var asked calls
			last := make(chan struct{})
			c.setInterfere(func(k call) interference {
				if k.name == "Register" && asked.next() == 4 {
					close(last)
					return interference{after: 50 * time.Millisecond}
				}
				return interference{}
			})
			txn := meanwhile(func() (*pb.TxnResponse, error) {
				return c.node(origin).router.Txn(t.Context(), &pb.TxnRequest{
					Compare: []*pb.Compare{{Key: []byte("b/marker"), Target: pb.Compare_VERSION, Result: pb.Compare_GREATER, TargetUnion: &pb.Compare_Version{}}},
					Success: []*pb.RequestOp{wrapPut(&pb.PutRequest{Key: []byte("b/x"), Lease: ids[0]})},
					Failure: []*pb.RequestOp{wrapPut(&pb.PutRequest{Key: []byte("b/x"), Lease: ids[1]})},
				})
			})
			<-last
			began := time.Now()
			c.node(3).grant(t, ids[0], 60)
			c.node(3).put(t, "b/marker", "1")
			if took := time.Since(began); took > 40*time.Millisecond {
				c.unshown("grant and marker took %v", took)
			}
			if resp, err := txn.wait(); err != nil || !resp.Succeeded {
				t.Errorf("from node %d: %v, %v", origin, resp, err)
			}
		})
	}
}

// A lease that nobody grants is not asked for without end, whichever branch uses it.
func TestUnknownLeasesOfBothBranches(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.place(shardB, c.nodes[1])
		ids := c.leasesAt(shardA, 2)
		for origin := uint64(2); origin <= 3; origin++ {
			_, err := c.node(origin).router.Txn(t.Context(), &pb.TxnRequest{
				Compare: []*pb.Compare{{Key: []byte("b/marker"), Target: pb.Compare_VERSION, Result: pb.Compare_GREATER, TargetUnion: &pb.Compare_Version{}}},
				Success: []*pb.RequestOp{wrapPut(&pb.PutRequest{Key: []byte("b/x"), Lease: ids[0]})},
				Failure: []*pb.RequestOp{wrapPut(&pb.PutRequest{Key: []byte("b/x"), Lease: ids[1]})},
			})
			if !errors.Is(err, mvcc.ErrLeaseNotFound) {
				t.Errorf("from node %d: %v", origin, err)
			}
		}
	})
}

// The keys of a lease are those of one moment: whoever hears of the second key hears
// of the first, though the first is the only one in its shard.
func TestKeysOfALeaseAtOneMoment(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		id := c.leaseAt(shardA)
		p := c.node(1)
		p.grant(t, id, 60)
		if err := p.attach(t, "b/0", id); err != nil {
			t.Fatal(err)
		}
		c.setInterfere(func(k call) interference {
			if k.name == "TimeToLive" {
				return interference{after: 50 * time.Millisecond}
			}
			return interference{}
		})
		asked := meanwhile(func() (*pb.LeaseTimeToLiveResponse, error) {
			return c.node(3).router.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: id, Keys: true})
		})
		time.Sleep(10 * time.Millisecond)
		for _, key := range []string{"c/1", "b/2"} {
			if err := p.attach(t, key, id); err != nil {
				t.Fatal(err)
			}
		}
		resp, err := asked.wait()
		if err != nil {
			t.Fatal(err)
		}
		has := make(map[string]bool)
		for _, key := range resp.Keys {
			has[string(key)] = true
		}
		if has["b/2"] && !has["c/1"] || !has["b/0"] {
			t.Errorf("the lease has %q", resp.Keys)
		}
	})
}

// The ids that a node picks have a home that it leads, so that it grants and renews
// without another node. One that leads nothing picks any.
func TestPickedLeasesHaveTheirHomeHere(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.place(shardB, c.nodes[1])
		c.place(shardD, c.nodes[1])
		var abroad calls
		c.setInterfere(func(k call) interference {
			if k.name == "Write" || k.name == "Renew" {
				abroad.next()
			}
			return interference{}
		})
		led := map[uint64][]uint64{1: {shardA, shardC}, 2: {shardB, shardD}, 3: {shardA, shardB, shardC, shardD}}
		for node := uint64(1); node <= nodes; node++ {
			p, homes := c.node(node), make(map[uint64]bool)
			before := abroad.made()
			for range 40 {
				resp, err := p.router.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 60})
				if err != nil {
					t.Fatalf("grant at node %d: %v", node, err)
				}
				if _, err := p.router.LeaseRenew(t.Context(), resp.ID); err != nil {
					t.Fatalf("renewal at node %d: %v", node, err)
				}
				homes[c.homeOf(resp.ID)] = true
			}
			if got := slices.Sorted(maps.Keys(homes)); !slices.Equal(got, led[node]) {
				t.Errorf("node %d picked homes %d, want %d", node, got, led[node])
			}
			if made := abroad.made() - before; (made > 0) != (node == 3) {
				t.Errorf("node %d: %d calls to other nodes", node, made)
			}
		}
	})
}

// The header of a grant or revocation has the revision of the moment at which that took
// place: not below what was acknowledged before, though on another shard and through another
// node, and below what comes after; that of a revocation is the one of its deletion.
func TestHeadersOfLeaseCalls(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		c.place(shardB, c.nodes[1])
		c.slowApply(3, shardB, 20*time.Millisecond)
		id := c.leaseAt(shardA)
		before := c.node(2).put(t, "b/before", "1")
		granted, err := c.node(3).router.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: id, TTL: 60})
		if err != nil {
			t.Fatal(err)
		}
		if after := c.node(2).put(t, "b/after", "1"); granted.Header.Revision < before || granted.Header.Revision >= after {
			t.Errorf("granted at %d, between puts at %d and %d", granted.Header.Revision, before, after)
		}
		for _, keys := range [][]string{nil, {"a/1"}, {"a/1", "b/1"}} {
			for _, key := range keys {
				if err := c.node(1).attach(t, key, id); err != nil {
					t.Fatal(err)
				}
			}
			put := c.node(2).put(t, "b/before", "2")
			// Others go on writing while the lease ends.
			stop := make(chan struct{})
			busy := meanwhile(func() (struct{}, error) {
				for {
					select {
					case <-stop:
						return struct{}{}, nil
					default:
						c.node(2).put(t, "c/busy", "1")
					}
				}
			})
			w := c.watchAll(c.node(1))
			revoked, err := c.node(3).router.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: id})
			if err != nil {
				t.Fatal(err)
			}
			after := c.node(2).put(t, "b/after", "2")
			close(stop)
			if _, err := busy.wait(); err != nil {
				t.Fatal(err)
			}
			rev := revoked.Header.Revision
			if rev < put || rev >= after {
				t.Errorf("with keys %v revoked at %d, between puts at %d and %d", keys, rev, put, after)
			}
			for !slices.ContainsFunc(w.events(), func(e *mvccpb.Event) bool { return e.Kv.ModRevision >= after }) {
				time.Sleep(time.Millisecond)
			}
			for _, e := range w.events() {
				if !slices.Contains(keys, string(e.Kv.Key)) {
					continue
				}
				if e.Kv.ModRevision > rev || len(keys) == 1 && e.Kv.ModRevision != rev {
					t.Errorf("with keys %v revoked at %d: %q went at %d", keys, rev, e.Kv.Key, e.Kv.ModRevision)
				}
			}
			c.node(1).grant(t, id, 60)
		}
	})
}
