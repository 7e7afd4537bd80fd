package e2e

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
	lease := s.grant(0, 600)
	value := strings.Repeat("v", 1<<20)
	var full error
	for i := 0; full == nil && i < 32; i++ {
		_, full = s.kv.Put(s.bound(), &pb.PutRequest{Key: []byte("fill"), Value: []byte(value)})
	}
	wantStatus(t, "the put that is too much", full, rpctypes.ErrGRPCNoSpace)
	grows := func(when string, want error) {
		t.Helper()
		_, err := s.kv.Put(s.bound(), &pb.PutRequest{Key: []byte("k")})
		wantStatus(t, when+": put", err, want)
		_, err = s.kv.Txn(s.bound(), &pb.TxnRequest{Success: []*pb.RequestOp{opPut("k", "")}})
		wantStatus(t, when+": txn with a put", err, want)
		_, err = s.lease.LeaseGrant(s.bound(), &pb.LeaseGrantRequest{TTL: 60})
		wantStatus(t, when+": grant", err, want)
	}
	grows("full", rpctypes.ErrGRPCNoSpace)
	if s.get("fill") == nil {
		t.Error("full: nothing to read")
	}
	s.del("k")
	s.txn(&pb.TxnRequest{Success: []*pb.RequestOp{opDelete("k", "l")}})
	s.revoke(lease)
	s.restart()
	alarms, err := s.maint.Alarm(s.bound(), &pb.AlarmRequest{Action: pb.AlarmRequest_GET})
	if err != nil || len(alarms.Alarms) != 1 || alarms.Alarms[0].Alarm != pb.AlarmType_NOSPACE || alarms.Alarms[0].MemberID != alarms.Header.MemberId {
		t.Fatalf("alarms after a restart: %v, %v", alarms, err)
	}
	grows("full and restarted", rpctypes.ErrGRPCNoSpace)
	s.compact(s.rev())
	if _, err := s.maint.Defragment(s.bound(), &pb.DefragmentRequest{}); err != nil {
		t.Errorf("defragment: %v", err)
	}
	grows("compacted, alarm on", rpctypes.ErrGRPCNoSpace)
	if off, err := s.c.AlarmDisarm(s.bound(), &clientv3.AlarmMember{}); err != nil || len(off.Alarms) != 1 {
		t.Errorf("disarm: %v, %v", off, err)
	}
	grows("disarmed", nil)
}

// Revisions never go back, although a compaction leaves nothing of the newest one,
// and whenever the server is killed meanwhile (17780, 16693).
func TestRevisionsNeverGoBack(t *testing.T) {
	seed := harness.Seed(t, "./e2e", 0)
	rnd := rand.New(rand.NewPCG(seed, 1))
	s := serve(t)
	for round := range harness.Sized(8, 100) {
		s.fill(fmt.Sprintf("filler/%d/", round), 2000)
		for _, key := range []string{"a", "b", "c", "d"} {
			s.put(key, "")
		}
		n := s.del("a")
		compacted := make(chan error, 1)
		go func() {
			_, err := s.kv.Compact(s.bound(), &pb.CompactionRequest{Revision: n, Physical: true})
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
		s.restart()
		got := s.read(&pb.RangeRequest{Key: []byte("a")})
		if got.Header.Revision < n || len(got.Kvs) != 0 {
			t.Fatalf("revision %d after a restart, was %d; a: %v", got.Header.Revision, n, got.Kvs)
		}
		if next := s.put("a", ""); !follows(next, n) {
			t.Fatalf("put at %d, after %d", next, n)
		}
		// The call may have been lost with the server, or made again by the client.
		_, err := s.kv.Compact(s.bound(), &pb.CompactionRequest{Revision: n})
		if err != nil {
			wantStatus(t, "compact again", err, rpctypes.ErrGRPCCompacted)
		}
		_, err = s.kv.Compact(s.bound(), &pb.CompactionRequest{Revision: n})
		wantStatus(t, "compact a third time", err, rpctypes.ErrGRPCCompacted)
		if got := s.read(&pb.RangeRequest{Key: []byte("b"), Revision: n}); len(got.Kvs) != 1 {
			t.Fatalf("b at %d: %v", n, got)
		}
	}
}

// What monitoring and Kubernetes ask a server (t4db/t4#107).
func TestVersionAndHealth(t *testing.T) {
	s := serve(t)
	s.put("k", "v")
	fetch := func(path string, into any) {
		t.Helper()
		r, err := http.Get("http://" + s.addr + path)
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
	status, err := s.maint.Status(s.bound(), &pb.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if status.Version != version.EtcdServer || status.RaftTerm == 0 || status.RaftIndex == 0 || status.RaftAppliedIndex == 0 ||
		status.Leader != status.Header.MemberId || status.DbSize <= 0 || status.DbSizeInUse <= 0 {
		t.Errorf("status %v", status)
	}
	check, err := grpc_health_v1.NewHealthClient(s.conn).Check(s.bound(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || check.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health service: %v, %v", check, err)
	}
	members, err := s.c.MemberList(s.bound())
	if err != nil || len(members.Members) != 1 || members.Members[0].ID != status.Leader || members.Members[0].ClientURLs[0] != "http://"+s.addr {
		t.Errorf("members %v, %v", members, err)
	}
}
