package cases

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// A store that has reached its quota refuses what makes it grow and nothing else,
// also after a restart, until it was made smaller and the alarm is disarmed (9992,
// 17318).
func TestQuotaReached(t *testing.T) {
	s := serve(t, "--quota-backend-bytes=16777216")
	lease := s.Grant(0, 600)
	value := strings.Repeat("v", 1<<20)
	var full error
	for i := 0; full == nil && i < 32; i++ {
		_, full = s.KV.Put(s.Bound(), &pb.PutRequest{Key: []byte("fill"), Value: []byte(value)})
	}
	harness.WantStatus(t, "the put that is too much", full, rpctypes.ErrGRPCNoSpace)
	grows := func(when string, want error) {
		t.Helper()
		_, err := s.KV.Put(s.Bound(), &pb.PutRequest{Key: []byte("k")})
		harness.WantStatus(t, when+": put", err, want)
		_, err = s.KV.Txn(s.Bound(), &pb.TxnRequest{Success: []*pb.RequestOp{harness.OpPut("k", "")}})
		harness.WantStatus(t, when+": txn with a put", err, want)
		_, err = s.Lease.LeaseGrant(s.Bound(), &pb.LeaseGrantRequest{TTL: 60})
		harness.WantStatus(t, when+": grant", err, want)
	}
	grows("full", rpctypes.ErrGRPCNoSpace)
	if s.Get("fill") == nil {
		t.Error("full: nothing to read")
	}
	s.Delete("k")
	s.Txn(&pb.TxnRequest{Success: []*pb.RequestOp{harness.OpDelete("k", "l")}})
	s.Revoke(lease)
	s.Restart()
	alarms, err := s.Maintenance.Alarm(s.Bound(), &pb.AlarmRequest{Action: pb.AlarmRequest_GET})
	if err != nil || len(alarms.Alarms) != 1 || alarms.Alarms[0].Alarm != pb.AlarmType_NOSPACE || alarms.Alarms[0].MemberID != alarms.Header.MemberId {
		t.Fatalf("alarms after a restart: %v, %v", alarms, err)
	}
	grows("full and restarted", rpctypes.ErrGRPCNoSpace)
	s.Compact(s.Revision())
	if _, err := s.Maintenance.Defragment(s.Bound(), &pb.DefragmentRequest{}); err != nil {
		t.Errorf("defragment: %v", err)
	}
	grows("compacted, alarm on", rpctypes.ErrGRPCNoSpace)
	if off, err := s.C.AlarmDisarm(s.Bound(), &clientv3.AlarmMember{}); err != nil || len(off.Alarms) != 1 {
		t.Errorf("disarm: %v, %v", off, err)
	}
	grows("disarmed", nil)
}

// Revisions never go back, although a compaction leaves nothing of the newest one,
// and whenever the server is killed meanwhile (17780, 16693).
func TestRevisionsNeverGoBack(t *testing.T) {
	seed := harness.Seed(t, "./e2e/cases", 0)
	rnd := rand.New(rand.NewPCG(seed, 1))
	s := serve(t)
	for round := range harness.Sized(8, 100) {
		s.fill(fmt.Sprintf("filler/%d/", round), 2000)
		for _, key := range []string{"a", "b", "c", "d"} {
			s.Put(key, "")
		}
		n := s.Delete("a")
		compacted := make(chan error, 1)
		go func() {
			_, err := s.KV.Compact(s.Bound(), &pb.CompactionRequest{Revision: n, Physical: true})
			compacted <- err
		}()
		// Some rounds end before the compaction begins, some while it removes, some
		// behind it.
		wait := time.NewTimer(time.Duration(rnd.IntN(30)) * time.Millisecond)
		select {
		case <-wait.C:
		case err := <-compacted:
			if err != nil {
				t.Errorf("compact %d: %v", n, err)
			}
		}
		s.Restart()
		got := s.Read(&pb.RangeRequest{Key: []byte("a")})
		if got.Header.Revision < n || len(got.Kvs) != 0 {
			t.Fatalf("revision %d after a restart, was %d; a: %v", got.Header.Revision, n, got.Kvs)
		}
		if next := s.Put("a", ""); !harness.Follows(next, n) {
			t.Fatalf("put at %d, after %d", next, n)
		}
		// The call may have been lost with the server, or made again by the client.
		_, err := s.KV.Compact(s.Bound(), &pb.CompactionRequest{Revision: n})
		if err != nil {
			harness.WantStatus(t, "compact again", err, rpctypes.ErrGRPCCompacted)
		}
		_, err = s.KV.Compact(s.Bound(), &pb.CompactionRequest{Revision: n})
		harness.WantStatus(t, "compact a third time", err, rpctypes.ErrGRPCCompacted)
		if got := s.Read(&pb.RangeRequest{Key: []byte("b"), Revision: n}); len(got.Kvs) != 1 {
			t.Fatalf("b at %d: %v", n, got)
		}
	}
}

// What monitoring and Kubernetes ask a server (t4db/t4#107).
func TestVersionAndHealth(t *testing.T) {
	s := serve(t)
	s.Put("k", "v")
	fetch := func(path string, into any) {
		t.Helper()
		r, err := http.Get("http://" + s.Addr + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v: %s", path, r.Status, err, body)
		}
		if err := json.Unmarshal(body, into); err != nil {
			t.Errorf("%s: %v: %s", path, err, body)
		}
	}
	var version struct{ EtcdServer, EtcdCluster string }
	fetch("/version", &version)
	// Kubernetes asks for progress of servers from 3.4.31 and 3.5.13 on.
	semver := regexp.MustCompile(`^3\.[7-9]\.\d+$`)
	if !semver.MatchString(version.EtcdServer) || !semver.MatchString(version.EtcdCluster) {
		t.Errorf("versions %+v", version)
	}
	var health struct{ Health string }
	if fetch("/health", &health); health.Health != "true" {
		t.Errorf("health %+v", health)
	}
	status, err := s.Maintenance.Status(s.Bound(), &pb.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if status.Version != version.EtcdServer || status.RaftTerm == 0 || status.RaftIndex == 0 || status.RaftAppliedIndex == 0 ||
		status.Leader != status.Header.MemberId || status.DbSize <= 0 || status.DbSizeInUse <= 0 {
		t.Errorf("status %v", status)
	}
	check, err := grpc_health_v1.NewHealthClient(s.Conn).Check(s.Bound(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || check.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health service: %v, %v", check, err)
	}
	members, err := s.C.MemberList(s.Bound())
	if err != nil || len(members.Members) != 1 || members.Members[0].ID != status.Leader || members.Members[0].ClientURLs[0] != "http://"+s.Addr {
		t.Errorf("members %v, %v", members, err)
	}
}
