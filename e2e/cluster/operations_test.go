package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// TestOperations runs the commands of docs/operations.md: a cluster is started, restarted node by node
// while it is written to, gets other members, is saved, restored as a cluster, recovered from a directory, and restored as a node
// that is alone, which grows.
func TestOperations(t *testing.T) {
	t.Parallel()
	// Hosts are addresses of this machine that no other test has.
	hosts := harness.FreeHosts(t)
	host := func(i int) string { return fmt.Sprint(hosts, i) }
	page := harness.OpenPage(t, "operations.md", "10.0.0.", hosts)
	node := func(i int) []string {
		return []string{"name=n1", fmt.Sprint("name=n", i), "host=10.0.0.1", fmt.Sprint("host=10.0.0.", i)}
	}
	stops := make(map[int]func())
	start := func(block string) {
		for i := 1; i <= 3; i++ {
			stops[i] = page.Start(block, node(i)...)
		}
	}
	stop := func() {
		for _, stop := range stops {
			stop()
		}
	}
	start("start")
	if out := page.Run("ready"); strings.Count(out, "started") != 3 {
		t.Errorf("members: %s", out)
	}
	c := harness.Dial(t, host(1)+":2379", host(2)+":2379", host(3)+":2379")
	defer c.Close()

	written := writeAlong(t, c)
	restarts := 0
	systemd(t, page.Bin, func() {
		restarts++
		stops[restarts]()
		stops[restarts] = page.Start("start", node(restarts)...)
	})
	for i := 1; i <= 3; i++ {
		page.Run("restart", "host=10.0.0.1", fmt.Sprint("host=10.0.0.", i))
		if restarts != i {
			t.Fatalf("%d restarts, want %d", restarts, i)
		}
	}
	if out := page.Run("version"); strings.Count(out, host(1)) < 1 || !strings.Contains(out, "latchkey_cluster_version ") {
		t.Errorf("versions: %s", out)
	}
	stops[2]()
	stops[3]()
	members(t, page, host, node, page.Launch("start", node(2)...), page.Launch("start", node(3)...))
	last := written()
	page.Run("backup")
	stops[1]()

	for i := 1; i <= 3; i++ {
		page.Run("restore", node(i)...)
	}
	start("start-restored")
	page.Run("ready")
	rev := checkRestored(t, c, last, 1_000_000)
	stop()
	// The directory that is left of the first cluster.
	page.Run("recover", "n3.latchkey", "n1.latchkey")
	for i := 1; i <= 3; i++ {
		page.Run("restore-recovered", node(i)...)
	}
	start("start-recovered")
	page.Run("ready")
	checkRestored(t, c, last, 1_000_000_000)
	stop()
	page.Run("restore-one")
	alone := page.Launch("start-one")
	one := harness.Dial(t, host(1)+":2379")
	defer one.Close()
	if now := checkRestored(t, one, last, 0); now >= rev {
		t.Errorf("revision %d without --bump-revision, %d with", now, rev)
	}
	grows(t, page, alone, one)
	page.AllRun()
}

// members runs the commands on members, on a cluster of three nodes of which two are replaced, one that runs and one that is
// lost, and all but the first leave in the end.
func members(t *testing.T, page *harness.Page, host func(i int) string, node func(i int) []string, second, third *harness.Started) {
	t.Helper()
	named := func(i, as int) []string { return []string{fmt.Sprint("name=n", as), fmt.Sprint("name=n", i)} }
	page.Run("ready")
	// join adds a node by a block that adds the node as, starts it, and has it vote.
	join := func(block string, i, as int) *harness.Started {
		t.Helper()
		var other []string
		if i != as {
			other = []string{fmt.Sprint("add n", as), fmt.Sprint("add n", i), fmt.Sprint("10.0.0.", as), fmt.Sprint("10.0.0.", i)}
		}
		s := page.Launch("start-added", fourNodes, added(t, page.RunAgain(block, other...)),
			"name=n4", fmt.Sprint("name=n", i), "host=10.0.0.4", fmt.Sprint("host=10.0.0.", i))
		if block == "learner" {
			page.RunAgain("promote")
		}
		page.Run("ready-added", "host=10.0.0.4", fmt.Sprint("host=10.0.0.", i))
		return s
	}
	// removed has a node removed that runs.
	removed := func(i int, s *harness.Started) {
		t.Helper()
		page.RunAgain("remove", named(i, 3)...)
		var exit *exec.ExitError
		if err := s.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("a node that was removed ended with %v", err)
		}
		if err := os.RemoveAll(filepath.Join(page.Dir, fmt.Sprintf("n%d.latchkey", i))); err != nil {
			t.Fatal(err)
		}
	}
	fourth := join("add", 4, 4)
	removed(3, third)

	second.Kill()
	if err := os.RemoveAll(filepath.Join(page.Dir, "n2.latchkey")); err != nil {
		t.Fatal(err)
	}
	page.RunAgain("remove", named(2, 3)...)
	second = join("add", 2, 4)

	removed(5, join("learner", 5, 5))

	page.RunAgain("move")
	fourth.Stop()
	fourth = page.Launch("start-moved")
	page.Run("ready-added", "host=10.0.0.4", "host=10.0.0.14")
	moved := harness.Dial(t, host(14)+":2379")
	defer moved.Close()
	list, err := moved.MemberList(t.Context())
	if err != nil || len(list.Members) != 3 {
		t.Errorf("members %v, %v", list, err)
	}

	removed(4, fourth)
	removed(2, second)
}

// fourNodes are the members that the page has a node join.
const fourNodes = "n1=http://10.0.0.1:2380,n2=http://10.0.0.2:2380,n3=http://10.0.0.3:2380,n4=http://10.0.0.4:2380"

// added returns the members that member add prints.
func added(t *testing.T, out string) string {
	t.Helper()
	m := regexp.MustCompile(`ETCD_INITIAL_CLUSTER="(.*)"`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("no members are printed: %s", out)
	}
	return m[1]
}

// grows moves a node that was started without peer URLs, and has another join it.
func grows(t *testing.T, page *harness.Page, alone *harness.Started, c *clientv3.Client) {
	t.Helper()
	page.Run("move", "name=n4", "name=default", "10.0.0.14", "10.0.0.1")
	alone.Stop()
	page.Launch("start-moved", "name=n4", "name=one", "10.0.0.14", "10.0.0.1")
	page.Run("ready-added", "10.0.0.4", "10.0.0.1")
	page.Launch("start-added", fourNodes, added(t, page.RunAgain("add")), "first-1", "etcd-cluster")
	page.Run("ready-added")
	list, err := c.MemberList(t.Context())
	if err != nil || len(list.Members) != 2 || list.Members[0].Name == "" || list.Members[1].Name == "" {
		t.Errorf("members %v, %v", list, err)
	}
}

// writeAlong writes a counter until it is told to stop, and returns the last write.
func writeAlong(t *testing.T, c *clientv3.Client) (stop func() *clientv3.PutResponse) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			_, _ = c.Put(ctx, "counter", strconv.Itoa(i)) // a node that stops ends calls
		}
	})
	return func() *clientv3.PutResponse {
		cancel()
		wg.Wait()
		last, err := c.Put(t.Context(), "counter", "last")
		return harness.Must(t, last, err)
	}
}

// checkRestored checks that the counter is as it was last written, and returns the revision.
func checkRestored(t *testing.T, c *clientv3.Client, last *clientv3.PutResponse, bump int64) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.LongWait)
	defer cancel()
	got, err := c.Get(ctx, "counter")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) != 1 || got.Kvs[0].ModRevision != last.Header.Revision || got.Header.Revision <= last.Header.Revision+bump {
		t.Errorf("restored %v, last written at %d, bumped by %d", got, last.Header.Revision, bump)
	}
	return got.Header.Revision
}

// systemd makes a command systemctl in a folder, which calls restart.
func systemd(t *testing.T, bin string, restart func()) {
	t.Helper()
	socket := filepath.Join(bin, "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { restart() })}
	go func() { _ = server.Serve(l) }() // until it is closed
	t.Cleanup(func() { _ = server.Close() })
	script := "#!/bin/sh\n[ \"$*\" = 'restart latchkey' ] && curl -fsS --unix-socket " + socket + " http://systemd/\n"
	if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
}
