//go:build clients

package clients

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// The curl commands in the README do what they say.
func TestReadmeCurl(t *testing.T) {
	p := harness.NewProcess(t)
	var script string
	for _, b := range blocks(t, "sh") {
		if strings.HasPrefix(b, "curl ") {
			script = strings.ReplaceAll(b, "localhost:2379", p.Addr)
		}
	}
	out, err := exec.Command("bash", "-euc", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{
		`"key":"Zm9v"`, `"value":"YmFy"`, `"count":"1"`, "HTTP/1.1 200 OK", "Grpc-Metadata-Latchkey-Fencing-Token: 3\r\n",
	} {
		// The gateway varies the space behind colons and commas.
		if !strings.Contains(strings.ReplaceAll(string(out), `": "`, `":"`), want) {
			t.Errorf("the commands do not print %s:\n%s", want, out)
		}
	}
}

// readmePython is the command of the README's program in Python.
func readmePython(t *testing.T, addr string) *exec.Cmd {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	harness.Must(t, port, err)
	program := blocks(t, "python")[0]
	if !strings.Contains(program, "port=2379") {
		t.Fatalf("README.md's Python names no port:\n%s", program)
	}
	path := filepath.Join(t.TempDir(), "lock.py")
	harness.Must(t, path, os.WriteFile(path, []byte(strings.ReplaceAll(program, "port=2379", "port="+port)), 0o600))
	return exec.Command("/usr/bin/python3", path)
}

// The lock in Python in the README waits for its holder, prints its token, which is
// its key's, and lets go.
func TestReadmePython(t *testing.T) {
	const key = "/locks/ledger"
	s := harness.Serve(t)
	token := func() (printed int64) {
		t.Helper()
		out, err := readmePython(t, s.Addr).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if _, err := fmt.Sscanf(string(out), "fencing token %d\n", &printed); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return printed
	}
	first := token()
	s.Put(key, "another holder")
	second := make(chan int64, 1)
	before := len(s.Leases())
	go func() { second <- token() }()
	// It has asked for the lock, and left the lease for which it did.
	for end := time.Now().Add(harness.LongWait); len(s.Leases()) == before; {
		if time.Now().After(end) {
			t.Fatal("the program does not ask for the lock")
		}
	}
	harness.Still(t, "the lock of another holder", second)
	freed := s.Delete(key)
	var got int64
	select {
	case got = <-second:
	case <-time.After(harness.LongWait):
		t.Fatal("the program does not see that the lock is free")
	}
	if got <= freed || first >= got {
		t.Errorf("token %d after %d, free since %d", got, first, freed)
	}
	var events []string
	for r := range s.C.Watch(s.Bound(), key, clientv3.WithRev(1)) {
		for _, e := range r.Events {
			events = append(events, fmt.Sprintf("%s@%d", e.Type, e.Kv.ModRevision))
		}
		if len(events) >= 6 {
			break
		}
	}
	want := fmt.Sprintf("[PUT@%d DELETE@%d PUT@%d DELETE@%d PUT@%d DELETE@%d]",
		first, first+1, first+2, freed, got, got+1)
	if fmt.Sprint(events) != want {
		t.Errorf("the lock's key has seen %v, want %s", events, want)
	}
}
