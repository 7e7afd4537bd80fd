package raft

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pvfs "github.com/cockroachdb/pebble/v2/vfs"
	"github.com/lni/vfs"
)

// disks are those of a node at one moment.
type disks struct {
	state pvfs.FS
	raft  *vfs.MemFS
}

func copyState(tb testing.TB, fs pvfs.FS) pvfs.FS {
	tb.Helper()
	to := pvfs.NewMem()
	if _, err := pvfs.Clone(fs, to, "state", "state"); err != nil {
		tb.Fatal(err)
	}
	return to
}

func copyRaft(tb testing.TB, fs vfs.FS) *vfs.MemFS {
	tb.Helper()
	to := vfs.NewMem()
	if _, err := vfs.Clone(fs, to, "/raft", "/raft"); err != nil {
		tb.Fatal(err)
	}
	return to
}

// snapshotFile returns the file of the log's only snapshot.
func snapshotFile(tb testing.TB, fs vfs.FS, dir string) string {
	tb.Helper()
	names, err := fs.List(dir)
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		info, err := fs.Stat(path)
		if err != nil {
			tb.Fatal(err)
		}
		if strings.HasSuffix(name, ".gbsnap") {
			return path
		}
		if info.IsDir() {
			if found := snapshotFile(tb, fs, path); found != "" {
				return found
			}
		}
	}
	return ""
}

// rewrite changes the content of a file.
func rewrite(tb testing.TB, fs vfs.FS, path string, change func(b []byte) []byte) {
	tb.Helper()
	f, err := fs.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		tb.Fatal(err)
	}
	b := make([]byte, info.Size())
	if _, err := f.ReadAt(b, 0); err != nil {
		tb.Fatal(err)
	}
	if err := errors.Join(f.Close(), replaceFile(fs, fs.PathDir(path), fs.PathBase(path), change(b))); err != nil {
		tb.Fatal(err)
	}
}

// A node whose log and state are of different times has all its state or refuses to
// start, and the others go on.
func TestLogAndStateDisagree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOddCluster(t)
		defer c.close()
		c.add20()
		early := c.stopped()
		c.start(c.odd)
		c.add20()
		whole := c.stopped()
		c.refused("older log", disks{whole.state, early.raft}, "the log is an older copy")
		c.refused("no log", disks{whole.state, vfs.NewMem()}, "the log is an older copy")
		whole = c.starts("older state, whole log", disks{early.state, whole.raft})
		whole = c.starts("no state, whole log", disks{pvfs.NewMem(), whole.raft})
		c.use(whole)
		c.start(c.odd)
		c.add20()
		c.snapshot(c.odd)
		c.add20()
		cut := c.stopped()
		c.refused("older state, cut log", disks{early.state, cut.raft}, "the state is an older copy")
		c.refused("no state, cut log", disks{pvfs.NewMem(), cut.raft}, "the state is an older copy")
		c.starts("as they were", cut)
	})
}

// The same of a node that was sent a snapshot, before and after it was loaded.
func TestLogAndStateDisagreeOverReceivedSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOddCluster(t)
		defer c.close()
		c.add20()
		before := c.stopped()
		c.add20()
		c.snapshot(c.n)
		c.add20()

		// The node is cut off, and its disks are kept, when the snapshot is there and not
		// loaded, as a kill would leave them.
		sent := disks{state: before.state}
		c.odd.reloads = func() {
			c.net.isolate(c.addr(c.odd.id))
			sent.raft = copyRaft(t, c.odd.raftFS)
		}
		c.start(c.odd)
		await(t, func() bool { return c.odd.m.get("x") > 20 })
		c.stop(c.odd)
		c.net.heal()
		c.odd.reloads = nil

		file := snapshotFile(t, sent.raft, "/raft")
		damaged := func(from disks, change func(b []byte) []byte) disks {
			d := disks{from.state, copyRaft(t, from.raft)}
			rewrite(t, d.raft, file, change)
			return d
		}
		half := func(b []byte) []byte { return b[:len(b)/2] }
		empty := func([]byte) []byte { return nil }
		flip := func(at int) func([]byte) []byte {
			return func(b []byte) []byte {
				b[(at+len(b))%len(b)] ^= 1
				return b
			}
		}
		c.refused("cut off", damaged(sent, half), "not whole")
		c.refused("emptied", damaged(sent, empty), "not whole")
		c.refused("header flipped", damaged(sent, flip(9)), "header is damaged")
		c.refused("content flipped", damaged(sent, flip(1100)), "block is damaged")
		c.refused("end flipped", damaged(sent, flip(-1)), "end is missing")
		gone := disks{sent.state, copyRaft(t, sent.raft)}
		if err := gone.raft.Remove(file); err != nil {
			t.Fatal(err)
		}
		c.refused("gone", gone, "does not exist")
		loaded := c.starts("killed before it was loaded", sent)
		c.refused("state older than what was loaded", disks{before.state, loaded.raft}, "once loaded")
		c.refused("log older than what was loaded", disks{loaded.state, before.raft}, "the log is an older copy")
		loaded = c.starts("loaded, then cut off", damaged(loaded, half))
		loaded = c.starts("loaded, then emptied", damaged(loaded, empty))
		c.starts("as they were", loaded)
	})
}

// oddCluster is one of whose nodes the disks are tampered with.
type oddCluster struct {
	*cluster
	// n leads, odd is the node.
	n, odd *testNode
	count  uint64
}

func newOddCluster(tb testing.TB) *oddCluster {
	tb.Helper()
	c := &oddCluster{cluster: newCluster(tb, 3)}
	c.n, _ = c.leader(0)
	c.odd = c.nodes[c.n.id%3]
	return c
}

// add20 adds to a cell, and waits for the odd node if it runs.
func (c *oddCluster) add20() {
	c.t.Helper()
	for range 20 {
		if _, err := c.add(c.n, "x"); err != nil {
			c.t.Fatal(err)
		}
		c.count++
	}
	if c.odd.host != nil {
		await(c.t, func() bool { return c.odd.m.get("x") == c.count })
	}
}

func (c *oddCluster) snapshot(nd *testNode) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := nd.host.snapshot(ctx, 1); err != nil {
		c.t.Fatal(err)
	}
}

// stopped stops the odd node and returns its disks.
func (c *oddCluster) stopped() disks {
	c.t.Helper()
	c.stop(c.odd)
	return disks{copyState(c.t, c.odd.state), copyRaft(c.t, c.odd.raftFS)}
}

func (c *oddCluster) use(d disks) {
	c.t.Helper()
	c.odd.state, c.odd.raftFS = copyState(c.t, d.state), copyRaft(c.t, d.raft)
}

// refused checks that the odd node does not start on disks.
func (c *oddCluster) refused(what string, d disks, says string) {
	c.t.Helper()
	c.use(d)
	err := c.open(c.odd)
	if !errors.Is(err, ErrDisagree) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), remedy) {
		c.t.Errorf("%s: %v, want it to say %q", what, err, says)
	}
	if err == nil {
		c.stop(c.odd)
	}
}

// starts checks that the odd node starts on disks and catches up, and returns what they
// are then.
func (c *oddCluster) starts(what string, d disks) disks {
	c.t.Helper()
	c.use(d)
	if err := c.open(c.odd); err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
	c.add20()
	return c.stopped()
}

// An older copy of a whole directory is not known as one, but where a leader still counts
// on what is missing the log says what it is.
func TestForgottenEntriesAreExplained(t *testing.T) {
	var out bytes.Buffer
	before := raftLog.Swap(slog.New(slog.NewTextHandler(&out, nil)))
	defer raftLog.Store(before)
	defer func() {
		if recover() == nil || !strings.Contains(out.String(), remedy) {
			t.Errorf("logged %s", out.String())
		}
	}()
	raftLogger{"raft"}.Panicf("invalid commitTo index %d, lastIndex() %d", 7, 5)
}
