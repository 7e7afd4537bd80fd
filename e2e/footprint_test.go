package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

const mib = 1 << 20

// rss returns the bytes of memory that the process has resident.
func (p *process) rss() int64 {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if size, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(size), "kB")), 10, 64)
			if err != nil {
				p.t.Fatal(err)
			}
			return kib << 10
		}
	}
	p.t.Fatalf("no VmRSS in %s", status)
	return 0
}

// cpu returns the time that the process has run on a processor.
func (p *process) cpu() time.Duration {
	p.t.Helper()
	const tick = time.Second / 100 // the kernel's USER_HZ
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	const user, system = 11, 12
	var sum time.Duration
	for _, i := range []int{user, system} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			p.t.Fatal(err)
		}
		sum += time.Duration(n) * tick
	}
	return sum
}

// load returns the share of one core that the process takes over a time in which
// nobody asks anything of it.
func (p *process) load(over time.Duration) float64 {
	p.t.Helper()
	before, begin := p.cpu(), time.Now()
	wait := time.NewTimer(over)
	<-wait.C
	return float64(p.cpu()-before) / float64(time.Since(begin))
}

// An idle node is small and quiet, and a hundred thousand leases with a key each
// take a bounded amount of memory more.
func TestFootprint(t *testing.T) {
	const (
		idleLimit  = 100 * mib
		leaseLimit = 300 * mib
		leases     = 100_000
		loaders    = 250
		batch      = 100
	)
	s := serve(t, "--enable-pprof")
	load := s.load(3 * time.Second)
	idle := s.rss()
	t.Logf("idle: %d MiB, %.1f%% of a core", idle/mib, 100*load)
	if idle > idleLimit {
		t.Errorf("an idle node takes %d MiB", idle/mib)
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
					if _, err := s.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: id, TTL: 3600}); err != nil {
						t.Errorf("grant: %v", err)
						return
					}
					op := opPut(fmt.Sprintf("service/%07d/instance", id), "10.0.0.1:8080")
					op.GetRequestPut().Lease = id
					r.Success = append(r.Success, op)
				}
				if _, err := s.kv.Txn(s.bound(), r); err != nil {
					t.Errorf("txn: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	load = s.load(3 * time.Second)
	more := s.rss() - idle
	t.Logf("%d leases with a key each: %d MiB more, loaded in %v, then %.1f%% of a core", leases, more/mib, took, 100*load)
	if more > leaseLimit {
		t.Errorf("%d leases with a key each take %d MiB", leases, more/mib)
	}
	if n := s.count("service/"); n != leases {
		t.Errorf("%d keys", n)
	}

	s.restart()
	t.Logf("restarted with them: %d MiB more", (s.rss()-idle)/mib)
	if n := len(s.leases()); n != leases {
		t.Errorf("%d leases after a restart", n)
	}
	if more := s.rss() - idle; more > leaseLimit {
		t.Errorf("after a restart they take %d MiB", more/mib)
	}
}
