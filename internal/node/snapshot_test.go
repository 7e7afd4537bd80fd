package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	raftvfs "github.com/lni/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// snapshotFiles returns what the Raft snapshots of the data shards consist of.
func snapshotFiles(t *testing.T, fs raftvfs.FS, dir string) []string {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		info, err := fs.Stat(path)
		switch {
		case err != nil:
			t.Fatal(err)
		case info.IsDir():
			files = append(files, snapshotFiles(t, fs, path)...)
		case strings.Contains(dir, "snapshot-"):
			files = append(files, path)
		}
	}
	return files
}

// Keys and leases are there once, neither lost nor applied again, when a node that
// lost its power starts from a snapshot and the log behind it, whatever has become
// of the snapshot's files: the state does not come from them.
func TestStartFromSnapshot(t *testing.T) {
	seed := crashSeed(t)
	c := &crashable{
		t: t, rnd: rand.New(rand.NewPCG(seed, 1)),
		state: vfs.NewCrashableMem(), raft: raftvfs.NewStrictMem(), snapshots: 2000,
	}
	c.start()
	grant := func() int64 {
		t.Helper()
		resp, err := c.node.router.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 1000})
		if err != nil {
			t.Fatal(err)
		}
		return resp.ID
	}
	kept, gone := grant(), grant()
	if _, err := c.node.router.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: gone}); err != nil {
		t.Fatal(err)
	}
	files, puts := c.fillUntilSnapshot()
	for _, damage := range []struct {
		name string
		do   func(path string) error
	}{
		{"nothing", func(string) error { return nil }},
		{"truncated", func(path string) error { return c.rewrite(path, 100) }},
		{"emptied", func(path string) error { return c.rewrite(path, 0) }},
		{"removed", func(path string) error { return c.raft.Remove(path) }},
	} {
		c.crash()
		for _, path := range files {
			if err := damage.do(path); err != nil {
				t.Fatalf("%s: %v", damage.name, err)
			}
		}
		c.start()
		resp, err := c.node.router.Range(t.Context(), &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l"), CountOnly: true})
		if err != nil || resp.Count != puts || resp.Header.Revision != puts+1 {
			t.Errorf("%s: %d keys at revision %d, want %d: %v", damage.name, resp.GetCount(), resp.GetHeader().GetRevision(), puts, err)
		}
		leases, err := c.node.router.LeaseLeases(t.Context(), &pb.LeaseLeasesRequest{})
		if err != nil || !slices.EqualFunc(leases.Leases, []int64{kept}, func(l *pb.LeaseStatus, id int64) bool { return l.ID == id }) {
			t.Errorf("%s: leases %v, %v, want %d", damage.name, leases, err, kept)
		}
	}
	c.stop()
}

// fillUntilSnapshot puts keys until there is a snapshot, and a few more; it returns
// the snapshot's files and the number of keys.
func (c *crashable) fillUntilSnapshot() ([]string, int64) {
	c.t.Helper()
	const step, abreast, most = 500, 2, 10_000
	dir := c.node.dir.Raft("data")
	puts := int64(0)
	put := func() {
		var wg sync.WaitGroup
		for part := range abreast {
			wg.Go(func() {
				for i := part; i < step; i += abreast {
					key := fmt.Appendf(nil, "k/%d/%d", puts, i)
					if _, err := c.node.router.Put(context.WithoutCancel(c.t.Context()), &pb.PutRequest{Key: key}); err != nil {
						c.t.Errorf("put: %v", err)
						return
					}
				}
			})
		}
		wg.Wait()
		puts += step
	}
	for {
		put()
		if files := snapshotFiles(c.t, c.raft, dir); len(files) > 0 {
			put()
			return snapshotFiles(c.t, c.raft, dir), puts
		}
		if puts > most {
			c.t.Fatalf("no snapshot after %d puts", puts)
		}
	}
}

// rewrite cuts a file down to its first bytes.
func (c *crashable) rewrite(path string, size int) error {
	old, err := c.raft.Open(path)
	if err != nil {
		return fmt.Errorf("open snapshot: %w", err)
	}
	defer old.Close()
	content := make([]byte, size)
	if _, err := old.ReadAt(content, 0); err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	f, err := c.raft.Create(path)
	if err != nil {
		return fmt.Errorf("create snapshot: %w", err)
	}
	if _, err := f.Write(content); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return f.Close()
}
