package cluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// TestOperations runs the commands of docs/operations.md: a cluster is started, restarted node by node
// while it is written to, saved, and restored as a cluster and as a node that is alone.
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
	last := written()
	page.Run("backup")
	stop()

	for i := 1; i <= 3; i++ {
		page.Run("restore", node(i)...)
	}
	start("start-restored")
	page.Run("ready")
	rev := checkRestored(t, c, last, 1_000_000)
	stop()
	page.Run("restore-one")
	page.Start("start-one")
	one := harness.Dial(t, host(1)+":2379")
	defer one.Close()
	if now := checkRestored(t, one, last, 0); now >= rev {
		t.Errorf("revision %d without --bump-revision, %d with", now, rev)
	}
	page.AllRun()
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
