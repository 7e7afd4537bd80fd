package server

import (
	"fmt"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// An idle node is small and quiet, and a hundred thousand leases with a key each
// take a bounded amount of memory more.
func TestFootprint(t *testing.T) {
	const (
		idleLimit  = 100 * harness.MiB
		leaseLimit = 300 * harness.MiB
		leases     = 100_000
		loaders    = 250
		batch      = 100
	)
	s := harness.Serve(t, "--enable-pprof")
	load := s.Load(3 * time.Second)
	idle := s.RSS()
	t.Logf("idle: %d MiB, %.1f%% of a core", idle/harness.MiB, 100*load)
	if idle > idleLimit {
		t.Errorf("an idle node takes %d MiB", idle/harness.MiB)
	}
	if load > 0.2 { // the aim is 3%; a test machine has other things to do
		t.Errorf("an idle node takes %.1f%% of a core", 100*load)
	}

	begin := time.Now()
	var wg sync.WaitGroup
	for part := range loaders {
		wg.Go(func() {
			for first := part * batch; first < leases; first += loaders * batch {
				r := &pb.TxnRequest{}
				for id := int64(first + 1); id <= int64(min(first+batch, leases)); id++ {
					if _, err := s.Lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: id, TTL: 3600}); err != nil {
						t.Errorf("grant: %v", err)
						return
					}
					op := harness.OpPut(fmt.Sprintf("service/%07d/instance", id), "10.0.0.1:8080")
					op.GetRequestPut().Lease = id
					r.Success = append(r.Success, op)
				}
				if _, err := s.KV.Txn(s.Bound(), r); err != nil {
					t.Errorf("txn: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	load = s.Load(3 * time.Second)
	more := s.RSS() - idle
	t.Logf("%d leases with a key each: %d MiB more, loaded in %v, then %.1f%% of a core", leases, more/harness.MiB, took, 100*load)
	if more > leaseLimit {
		t.Errorf("%d leases with a key each take %d MiB", leases, more/harness.MiB)
	}
	if n := s.Count("service/"); n != leases {
		t.Errorf("%d keys", n)
	}

	s.Restart()
	t.Logf("restarted with them: %d MiB more", (s.RSS()-idle)/harness.MiB)
	if n := len(s.Leases()); n != leases {
		t.Errorf("%d leases after a restart", n)
	}
	if more := s.RSS() - idle; more > leaseLimit {
		t.Errorf("after a restart they take %d MiB", more/harness.MiB)
	}
}
