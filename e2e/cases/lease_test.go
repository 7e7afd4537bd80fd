package cases

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// putLeased writes a key with a lease.
func (s *served) putLeased(key string, lease int64) {
	s.T.Helper()
	s.PutRequest(&pb.PutRequest{Key: []byte(key), Lease: lease})
}

// attach puts n keys of a prefix with a lease.
func (s *served) attach(prefix string, n int, lease int64) {
	s.T.Helper()
	for first := 0; first < n; first += 100 {
		r := &pb.TxnRequest{}
		for i := first; i < min(first+100, n); i++ {
			op := harness.OpPut(fmt.Sprintf("%s%05d", prefix, i), "")
			op.GetRequestPut().Lease = lease
			r.Success = append(r.Success, op)
		}
		s.Txn(r)
	}
}

// renewal is one answer on a keep-alive stream.
type renewal struct {
	sent, answered time.Time
	ttl, rev       int64
}

// renew renews a lease every millisecond on a stream of its own until the context
// ends.
func renew(ctx context.Context, c pb.LeaseClient, lease int64) ([]renewal, error) {
	stream, err := c.LeaseKeepAlive(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var all []renewal
	for ctx.Err() == nil {
		<-tick.C
		sent := time.Now()
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: lease}); err != nil {
			return all, err
		}
		r, err := stream.Recv()
		if err != nil {
			return all, err
		}
		all = append(all, renewal{sent, time.Now(), r.TTL, r.Header.Revision})
	}
	return all, stream.CloseSend()
}

// A renewal that races with the lease's end either comes in time for all its keys
// or for none: who got a positive answer still has them, and after a negative one
// there are no positive ones (21389, 14758).
func TestRenewalRacesWithExpiry(t *testing.T) {
	s := serve(t, "--heartbeat-interval=20", "--election-timeout=200")
	const ttl, keys, conns, abreast = 1, 200, 4, 4
	seed := harness.Seed(t, "./e2e/cases", 0)
	rnd := rand.New(rand.NewPCG(seed, 1))
	clients := make([]pb.LeaseClient, conns)
	for i := range clients {
		clients[i] = pb.NewLeaseClient(s.Connect())
	}
	var renewed, ended atomic.Int32
	round := func(prefix string, from time.Duration) {
		l := s.Grant(0, ttl)
		// The leader's clock is at most a few of its ticks behind ours.
		due := time.Now().Add(ttl * time.Second)
		s.attach(prefix, keys, l)
		before := time.NewTimer(time.Until(due) + from)
		<-before.C
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		answers := make([][]renewal, conns)
		var wg sync.WaitGroup
		for i, c := range clients {
			wg.Go(func() {
				var err error
				if answers[i], err = renew(ctx, c, l); err != nil {
					t.Errorf("keep alive: %v", err)
				}
			})
		}
		wg.Wait()
		left := s.Read(harness.UnderPrefix(prefix, &pb.RangeRequest{CountOnly: true}))
		asked := time.Now()
		all := slices.Concat(answers...)
		slices.SortFunc(all, func(a, b renewal) int { return a.sent.Compare(b.sent) })
		var refused time.Time // the earliest negative answer
		var positive renewal
		for _, r := range all {
			switch {
			case r.ttl <= 0 && (refused.IsZero() || r.answered.Before(refused)):
				refused = r.answered
			case r.ttl > 0:
				positive = r
			}
		}
		for _, r := range all {
			if r.ttl > 0 && !refused.IsZero() && r.sent.After(refused) {
				t.Errorf("%s: renewed %v after it was refused", prefix, r.sent.Sub(refused))
				break
			}
		}
		switch {
		case positive.ttl == 0: // refused from the beginning: the keys go
			ended.Add(1)
			if left.Count != 0 {
				t.Errorf("%s: %d keys of a lease that is gone", prefix, left.Count)
			}
		case asked.Before(positive.sent.Add(500*time.Millisecond)) || left.Count == keys:
			renewed.Add(1)
			if left.Count != keys {
				t.Errorf("%s: %d keys %v after a renewal", prefix, left.Count, asked.Sub(positive.sent))
			}
		default:
			renewed.Add(1)
			gone := s.Read(harness.UnderPrefix(prefix, &pb.RangeRequest{Revision: positive.rev, CountOnly: true}))
			if gone.Count != keys {
				t.Errorf("%s: a positive answer at revision %d, where %d keys were left", prefix, positive.rev, gone.Count)
			}
		}
	}
	rounds := harness.Sized(12, 200) / abreast
	for n := 0; n < rounds || (renewed.Load() == 0 || ended.Load() == 0) && n < 10*rounds; n++ {
		// In milliseconds behind the end of the TTL. A slow machine is late, or its server is.
		low, high := -50, 600
		if n >= rounds && renewed.Load() == 0 {
			low, high = -500, -50
		} else if n >= rounds {
			low, high = 600, 2000
		}
		var wg sync.WaitGroup
		for i := range abreast {
			from := time.Duration(low+rnd.IntN(high-low)) * time.Millisecond
			wg.Go(func() { round(fmt.Sprintf("race/%d/%d/", n, i), from) })
		}
		wg.Wait()
	}
	t.Logf("%d were renewed in time, %d were not", renewed.Load(), ended.Load())
	if renewed.Load() == 0 || ended.Load() == 0 {
		t.Error("there was no race; the run shows nothing")
	}
}

// What is attached, attached elsewhere, detached and ended is so after a restart
// (6102, 8185).
func TestAttachmentsOverRestarts(t *testing.T) {
	s := serve(t)
	grant := func() int64 { return s.Grant(0, 300) }
	there := func(when, key string, want bool) {
		t.Helper()
		if got := s.Get(key) != nil; got != want {
			t.Errorf("%s: %s there %v, want %v", when, key, got, want)
		}
	}
	a1, a2, a3, a4, b4 := grant(), grant(), grant(), grant(), grant()
	s.putLeased("k1", a1)
	s.putLeased("k2", a2)
	s.Revoke(a2)
	s.putLeased("k3", a3)
	s.Put("k3", "")
	s.putLeased("k4", a4)
	s.putLeased("k4", b4)
	s.Restart()
	there("restarted", "k1", true)
	there("restarted", "k2", false)
	s.Revoke(a1)
	there("revoked", "k1", false)
	s.Revoke(a3)
	there("detached", "k3", true)
	s.Revoke(a4)
	there("attached elsewhere", "k4", true)
	s.Revoke(b4)
	there("revoked", "k4", false)
	s.Restart()
	for key, want := range map[string]bool{"k1": false, "k2": false, "k3": true, "k4": false} {
		there("restarted again", key, want)
	}
	if left := s.Leases(); len(left) != 0 {
		t.Errorf("leases %d", left)
	}
}

// Lease ids: picked, taken, negative, none (13676, 11935).
func TestLeaseIDs(t *testing.T) {
	s := serve(t)
	if id := s.Grant(0, 60); id <= 0 {
		t.Errorf("picked id %d", id)
	}
	s.Grant(5, 60)
	_, err := s.Lease.LeaseGrant(s.Bound(), &pb.LeaseGrantRequest{ID: 5, TTL: 60})
	harness.WantStatus(t, "id 5 again", err, rpctypes.ErrGRPCLeaseExist)
	s.Grant(-5, 600)
	s.putLeased("negative", -5)
	s.Restart()
	if ttl := s.TimeToLive(-5); ttl.GrantedTTL != 600 || ttl.TTL < 600-int64(harness.LongWait/time.Second) || len(ttl.Keys) != 1 || string(ttl.Keys[0]) != "negative" {
		t.Errorf("lease -5 after a restart: %v", ttl)
	}
	s.Revoke(-5)
	if s.Get("negative") != nil {
		t.Error("the key outlived lease -5")
	}
	if ttl := s.TimeToLive(0); ttl.TTL != -1 {
		t.Errorf("lease 0: %v", ttl)
	}
	s.putLeased("none", 0)
	if s.Get("none") == nil {
		t.Error("a put without a lease")
	}
	_, err = s.KV.Put(s.Bound(), &pb.PutRequest{Key: []byte("k"), Lease: -5})
	harness.WantStatus(t, "put with a lease that is gone", err, rpctypes.ErrGRPCLeaseNotFound)
	_, err = s.Lease.LeaseRevoke(s.Bound(), &pb.LeaseRevokeRequest{ID: -5})
	harness.WantStatus(t, "revoke again", err, rpctypes.ErrGRPCLeaseNotFound)
	_, err = s.Lease.LeaseGrant(s.Bound(), &pb.LeaseGrantRequest{TTL: 9_000_000_001})
	harness.WantStatus(t, "too long", err, rpctypes.ErrGRPCLeaseTTLTooLarge)
}

// A lease with very many keys: attaching doesn't get slower, its end is one
// revision, or one for each shard, that no reader sees half of, and others don't wait
// for it (9294, kubernetes/kubernetes#96836).
func TestLeaseWithManyKeys(t *testing.T) {
	s := serve(t)
	keys := harness.Sized(10_000, 50_000)
	l := s.Grant(0, 3600)
	w := s.OpenWatch()
	w.Create(&createWatch{Key: []byte("many/"), RangeEnd: []byte("many0"), Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}})
	id := w.Created()
	var took []time.Duration
	for i := 0; i < keys; i += 1000 {
		begin := time.Now()
		s.attach(fmt.Sprintf("many/%03d/", i/1000), 1000, l)
		took = append(took, time.Since(begin))
	}
	slices.Sort(took[:len(took)/2])
	slices.Sort(took[len(took)/2:])
	early, late := took[len(took)/4], took[len(took)/2+len(took)/4]
	if late > 4*early+50*time.Millisecond {
		t.Errorf("1000 keys took %v at first, %v in the end", early, late)
	}
	if ttl := s.TimeToLive(l); len(ttl.Keys) != keys {
		t.Errorf("%d keys on the lease", len(ttl.Keys))
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var others sync.WaitGroup
	var slowest atomic.Int64
	others.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			<-tick.C
			begin := time.Now()
			if _, err := s.KV.Put(ctx, &pb.PutRequest{Key: []byte("other")}); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			slowest.Store(max(slowest.Load(), int64(time.Since(begin))))
		}
	})
	others.Go(func() {
		for ctx.Err() == nil {
			r, err := s.KV.Range(ctx, harness.UnderPrefix("many/", &pb.RangeRequest{CountOnly: true}))
			if err == nil && r.Count != 0 && r.Count != int64(keys) {
				t.Errorf("a reader sees %d of %d keys", r.Count, keys)
				return
			}
		}
	})
	s.Revoke(l)
	deletes := eventsOf(w, id, keys)
	cancel()
	others.Wait()
	ends := make(map[int64]bool)
	for i, e := range deletes {
		if i > 0 && e.Kv.ModRevision < deletes[i-1].Kv.ModRevision {
			t.Fatalf("event %d is %v, behind %v", i, e, deletes[i-1])
		}
		ends[e.Kv.ModRevision] = true
	}
	if len(ends) != 1 {
		t.Errorf("the lease ended at revisions %v, want one", ends)
	}
	slices.SortStableFunc(deletes, func(a, b *mvccpb.Event) int { return bytes.Compare(a.Kv.Key, b.Kv.Key) })
	for i, e := range deletes {
		if want := fmt.Sprintf("many/%03d/%05d", i/1000, i%1000); e.Type != mvccpb.Event_DELETE || string(e.Kv.Key) != want {
			t.Fatalf("event %d by key is %v, want a delete of %s", i, e, want)
		}
	}
	if slow := time.Duration(slowest.Load()); slow > harness.Promptly {
		t.Errorf("another client's put took %v", slow)
	} else {
		t.Logf("1000 keys: %v at first, %v in the end; slowest put of another client %v", early, late, slow)
	}
}

// Grants and revokes are in the log once (11935). See also TestSnapshotsOfState.
func TestLeasesAreNotAppliedTwice(t *testing.T) {
	s := serve(t, "--log-level=info")
	kept, gone := s.Grant(0, 600), s.Grant(0, 600)
	s.Revoke(gone)
	for range 2 {
		s.Restart()
		if got := s.Leases(); !slices.Equal(got, []int64{kept}) {
			t.Errorf("leases %d, want %d", got, kept)
		}
		if r := s.Revision(); r != 1 && !harness.FourShards() {
			t.Errorf("revision %d", r)
		}
	}
}
