package sim

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	raftpb "github.com/lni/dragonboat/v4/raftpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/mvcc"
)

// deleted returns the revisions at which keys were deleted, by key.
func deleted(events []*mvccpb.Event) map[string]int64 {
	at := make(map[string]int64)
	for _, e := range events {
		if e.Type == mvccpb.Event_DELETE {
			at[string(e.Kv.Key)] = e.Kv.ModRevision
		}
	}
	return at
}

// Puts race with the end of their lease, on all shards and from all nodes, while leaders change: be
// it revoked or expired, all its keys go at one revision, also those that were put at the last moment,
// and what is put later is refused. Nobody sees some of the keys gone and others not.
func TestLeaseEndsAtOneRevision(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		w := c.watchAll(c.node(2))
		heard, acknowledged := 0, 0
		for round, id := range c.leasesAt(shardC, unlessShort(60, 15)) {
			p := c.node(uint64(1 + round%nodes))
			p.grant(t, id, 2)
			granted := time.Now()
			key := func(i int) string { return fmt.Sprintf("%c/%d.%d", 'a'+i%4, round, i) }
			if err := errors.Join(p.attach(t, key(0), id), p.attach(t, key(1), id)); err != nil {
				t.Fatal(err)
			}
			// A revocation comes in the middle of the puts, and an expiry may.
			var end time.Time
			if end = granted.Add(2*time.Second + time.Duration(c.rnd.IntN(400))*time.Millisecond); round%3 != 0 {
				end = time.Now().Add(50 * time.Millisecond)
			}
			time.Sleep(time.Until(end) - 20*time.Millisecond)
			var puts []*later[*pb.PutResponse]
			for i := 2; i < 14; i++ {
				from, at := c.node(uint64(1+c.rnd.IntN(nodes))), time.Duration(c.rnd.IntN(40))*time.Millisecond
				puts = append(puts, meanwhile(func() (*pb.PutResponse, error) {
					time.Sleep(at)
					return from.router.Put(t.Context(), &pb.PutRequest{Key: []byte(key(i)), Lease: id})
				}))
			}
			moved := meanwhile(func() (any, error) {
				if round%4 == 1 {
					c.place(shardA+uint64(round)%4, c.nodes[c.rnd.IntN(nodes)])
				}
				return nil, nil
			})
			looked := meanwhile(func() (*pb.RangeResponse, error) {
				time.Sleep(20 * time.Millisecond)
				return c.node(3).router.Range(t.Context(), &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("e")})
			})
			if round%3 != 0 {
				time.Sleep(time.Until(end))
				if _, err := p.router.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: id}); err != nil && !errors.Is(err, lease.ErrNotFound) {
					t.Fatal(err)
				}
			}
			attached := map[string]int64{key(0): 0, key(1): 0}
			for i, put := range puts {
				switch resp, err := put.wait(); {
				case err == nil:
					attached[key(i+2)] = resp.Header.Revision
					acknowledged++
				case !errors.Is(err, mvcc.ErrLeaseNotFound):
					t.Fatal(err)
				}
			}
			for len(p.leasesOf(id)) > 0 {
				time.Sleep(10 * time.Millisecond)
			}
			found, _ := c.node(1).read(t, "a", "e")
			if len(found) > 0 {
				t.Fatalf("lease %x has ended, and there are %v", id, found)
			}
			_, _ = moved.wait()
			heard += 2 * len(attached)
			at := deleted(w.heard(t, heard))
			n := at[key(0)]
			for key, put := range attached {
				if at[key] != n || put >= n {
					t.Errorf("%s was put at %d and deleted at %d; the lease ended at %d", key, put, at[key], n)
				}
			}
			seen, err := looked.wait()
			if err != nil {
				t.Fatal(err)
			}
			names := make([]string, 0, len(seen.Kvs))
			for _, kv := range seen.Kvs {
				names = append(names, string(kv.Key))
			}
			if slices.Contains(names, key(0)) != slices.Contains(names, key(1)) {
				t.Errorf("at %d, with the end at %d, there were %q", seen.Header.Revision, n, names)
			}
			if n == 0 {
				t.Errorf("%s was not deleted", key(0))
			}
		}
		if acknowledged == 0 {
			c.unshown("no put was in time")
		}
	})
}

// leasesOf returns the record of a lease, if its home has it.
func (p *process) leasesOf(id int64) (found []lease.Record) {
	for _, d := range p.shards {
		for _, rec := range d.Leases() {
			if rec.ID == id {
				found = append(found, rec)
			}
		}
	}
	return found
}

// A shard without a leader keeps the keys of dead leases, there and elsewhere; other leases end
// in time, nobody waits for long for keys of other shards, and leases are renewed. When it has a
// leader again each lease ends at one revision.
func TestEndsPastAShardWithoutALeader(t *testing.T) {
	bubble(t, func(c *cluster) {
		const renewed, late, delay = 4001, 2 * time.Second, 1500 * time.Millisecond
		t, p := c.tb, c.node(1)
		ids := c.leasesAt(shardA, unlessShort(500, 20))
		w := c.watchAll(c.node(2))
		abreast(t, len(ids), func(n int64) error {
			i, id := n-1, ids[n-1]
			p.grant(t, id, 3)
			return errors.Join(p.attach(t, fmt.Sprintf("a/%d", i), id), p.attach(t, fmt.Sprintf("%c/%d", 'b'+i%2, i), id))
		})
		p.grant(t, renewed, 5)
		u := p.use(t, renewed, "d/used")
		heal := c.drop(shardB, func(link, *raftpb.Message) bool { return true })
		time.Sleep(3*time.Second + late)
		slowest := time.Duration(0)
		length := unlessShort(20*time.Second, 6*time.Second)
		for begun := time.Now(); time.Since(begun) < length; time.Sleep(30 * time.Millisecond) {
			asked := time.Now()
			found, _ := p.read(t, "a/", "a0")
			slowest = max(slowest, time.Since(asked))
			if len(found) != len(ids)/2 {
				t.Fatalf("there are %v", found)
			}
		}
		u.end()
		if slowest > delay || u.slowestPut > delay || u.slowestRenewal > delay {
			t.Errorf("a read took %v, a put %v and a renewal %v", slowest, u.slowestPut, u.slowestRenewal)
		}
		heal()
		time.Sleep(10 * time.Second)
		if found, _ := p.read(t, "a/", "c/9"); len(found) > 0 {
			t.Errorf("left are %v", found)
		}
		at := deleted(w.heard(t, 4*len(ids)))
		for i := range ids {
			first, second := at[fmt.Sprintf("a/%d", i)], at[fmt.Sprintf("%c/%d", 'b'+i%2, i)]
			if first == 0 || first != second {
				t.Errorf("the keys of lease %d went at %d and %d", i, first, second)
			}
		}
	})
}

// A user revokes a lease while another attaches a key to it that the user may not write, on another
// shard: either the key was there, and the revocation is refused, or it came too late.
func TestRevocationIsJudgedWhereItApplies(t *testing.T) {
	bubble(t, func(c *cluster) {
		t := c.tb
		one, three := c.node(1), c.node(3)
		one.enableUsers(t)
		root, u := one.as(t, auth.Root), three.as(t, "u")
		refused, revoked := 0, 0
		for round, id := range c.leasesAt(shardC, unlessShort(80, 30)) {
			one.grant(t, id, 1000)
			if _, err := one.router.Put(root, &pb.PutRequest{Key: []byte("a/own"), Lease: id}); err != nil {
				t.Fatal(err)
			}
			if round%2 == 0 { // the shard is known to have keys of it
				if _, err := one.router.Put(root, &pb.PutRequest{Key: []byte("b/secret"), Lease: id}); err != nil {
					t.Fatal(err)
				}
				if _, err := one.router.DeleteRange(root, &pb.DeleteRangeRequest{Key: []byte("b/secret")}); err != nil {
					t.Fatal(err)
				}
			}
			at := time.Duration(c.rnd.IntN(10_000)) * time.Microsecond
			attached := meanwhile(func() (*pb.PutResponse, error) {
				time.Sleep(at)
				return one.router.Put(root, &pb.PutRequest{Key: []byte("b/secret"), Lease: id})
			})
			time.Sleep(time.Duration(c.rnd.IntN(10_000)) * time.Microsecond)
			_, err := three.router.LeaseRevoke(u, &pb.LeaseRevokeRequest{ID: id})
			_, putErr := attached.wait()
			found, rerr := one.router.Range(root, &pb.RangeRequest{Key: []byte("b/secret")})
			if rerr != nil {
				t.Fatal(rerr)
			}
			switch {
			case err == nil && errors.Is(putErr, mvcc.ErrLeaseNotFound) && found.Count == 0:
				revoked++
			case errors.Is(err, auth.ErrPermissionDenied) && putErr == nil && found.Count == 1:
				refused++
				if _, err := one.router.LeaseRevoke(root, &pb.LeaseRevokeRequest{ID: id}); err != nil {
					t.Fatal(err)
				}
			default:
				t.Fatalf("revocation: %v; put: %v; the key: %v", err, putErr, found.Kvs)
			}
		}
		t.Logf("%d revoked, %d refused", revoked, refused)
		if revoked == 0 || refused == 0 {
			c.unshown("the calls did not meet")
		}
	})
}

// While one shard is slow to prepare the end of a lease, a key is put on a shard that has none yet. It
// is put after the end, which does not delete it: so it must be refused.
func TestNothingIsAttachedWhileALeaseEnds(t *testing.T) {
	for name, key := range map[string]string{"at the home": "a/x", "at a shard that prepared": "c/x", "at another shard": "d/x"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(c *cluster) {
				t, p := c.tb, c.node(1)
				id := c.leaseAt(shardA)
				p.grant(t, id, 1000)
				if err := errors.Join(p.attach(t, "b/1", id), p.attach(t, "c/1", id)); err != nil {
					t.Fatal(err)
				}
				heal := c.drop(shardB, entries)
				revoked := meanwhile(func() (*pb.LeaseRevokeResponse, error) {
					return p.router.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: id})
				})
				time.Sleep(50 * time.Millisecond)
				put := meanwhile(func() (any, error) { return nil, c.node(2).attach(t, key, id) })
				time.Sleep(50 * time.Millisecond)
				select {
				case <-put.done:
					t.Error("the put did not wait")
				case <-revoked.done:
					c.unshown("the end did not wait")
				default:
				}
				heal()
				_, err := revoked.wait()
				if _, putErr := put.wait(); err != nil || !errors.Is(putErr, mvcc.ErrLeaseNotFound) {
					t.Errorf("revocation: %v, put: %v", err, putErr)
				}
				if found, _ := c.node(3).read(t, "a", "e"); len(found) > 0 {
					t.Errorf("left are %v", found)
				}
			})
		})
	}
}
