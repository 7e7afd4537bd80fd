package e2e

import (
	"os"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// A node starts under any host name, as containers give it, and has its data.
func TestHostNameChanges(t *testing.T) {
	s := serve(t)
	s.put("k", "v")
	rev := s.rev()
	for _, name := range []string{"moved", "moved", "moved-again"} {
		s.kill()
		s.wrap = onHost(name)
		s.start()
		if kv := s.get("k"); string(kv) != "v" {
			t.Fatalf("on host %s: %q\n%s", name, kv, s.log)
		}
		if next := s.put("l", ""); !follows(next, rev) {
			t.Fatalf("on host %s: revision %d after %d", name, next, rev)
		}
		rev = s.rev()
		logs, err := os.ReadDir(s.dir + "/raft/data/" + name)
		if err != nil || len(logs) == 0 {
			t.Errorf("the host is not called %s for the server: %v, %v", name, logs, err)
		}
	}
	if n := s.read(&pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z"), CountOnly: true}).Count; n != 2 {
		t.Errorf("%d keys at last", n)
	}
	if log := s.log.String(); strings.Contains(log, "level=ERROR") {
		t.Errorf("logged:\n%s", log)
	}
}

// onHost returns what runs a command on a host called name, as any user.
func onHost(name string) []string {
	args := []string{"unshare", "--uts"}
	if os.Getuid() != 0 {
		args = append(args, "--user", "--map-root-user")
	}
	return append(args, "sh", "-c", `echo "$0" >/proc/sys/kernel/hostname && exec "$@"`, name)
}
