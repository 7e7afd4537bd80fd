package server

import (
	"os"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// A node starts under any host name, as containers give it, and has its data.
func TestHostNameChanges(t *testing.T) {
	s := harness.Serve(t)
	s.Put("k", "v")
	rev := s.Revision()
	for _, name := range []string{"moved", "moved", "moved-again"} {
		s.Kill()
		s.Wrap = onHost(name)
		s.Start()
		if kv := s.Get("k"); string(kv) != "v" {
			t.Fatalf("on host %s: %q\n%s", name, kv, s.Log)
		}
		if next := s.Put("l", ""); !harness.Follows(next, rev) {
			t.Fatalf("on host %s: revision %d after %d", name, next, rev)
		}
		rev = s.Revision()
		logs, err := os.ReadDir(s.Dir + "/raft/data/dragonboat/" + name)
		if err != nil || len(logs) == 0 {
			t.Errorf("the host is not called %s for the server: %v, %v", name, logs, err)
		}
	}
	if n := s.Read(&pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z"), CountOnly: true}).Count; n != 2 {
		t.Errorf("%d keys at last", n)
	}
	if log := s.Log.String(); strings.Contains(log, "level=ERROR") {
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
