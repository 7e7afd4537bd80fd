package raft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lni/vfs"
)

// A node whose host has another name than at its last start has its whole log, and the
// snapshots that it made, sends and is sent.
func TestHostNameChanges(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	// Each makes the log one that another host left.
	ways := []func(*vfs.MemFS) error{
		func(fs *vfs.MemFS) error { return errors.Join(writeHost(fs, ownDir, "elsewhere"), leave(fs, host)) },
		func(fs *vfs.MemFS) error { return errors.Join(writeHost(fs, ownDir, ""), leave(fs, host)) },
		func(fs *vfs.MemFS) error { return nameHost(fs, ownDir, "elsewhere") },
	}
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.close()
		var term uint64
		for round, move := range ways {
			var n *testNode
			n, term = c.leader(term)
			behind := c.nodes[n.id%3]
			c.stop(behind)
			for range 20 {
				if _, err := c.add(n, "x"); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			if err := n.host.snapshot(ctx, 1); err != nil {
				t.Fatal(err)
			}
			cancel()
			if v, err := c.add(n, "x"); err != nil || v != uint64(21*(round+1)) {
				t.Fatalf("add: %d, %v", v, err)
			}
			for _, nd := range c.nodes {
				if nd != behind {
					c.stop(nd)
				}
				if err := move(nd.raftFS); err != nil {
					t.Fatal(err)
				}
				if _, err := nd.raftFS.Stat(ownDir + "/" + host); err == nil {
					t.Fatal("the log still has this host's name")
				}
			}
			for _, nd := range c.nodes {
				c.start(nd)
			}
			for _, nd := range c.nodes {
				for nd.m.get("x") != uint64(21*(round+1)) {
					time.Sleep(time.Millisecond)
				}
			}
		}
	})
}

// leave renames a log's directory to that of another host.
func leave(fs *vfs.MemFS, host string) error { return fs.Rename(ownDir+"/"+host, ownDir+"/elsewhere") }

// ownDir is where dragonboat keeps what is its own.
const ownDir = "/raft/" + dragonboatDir

func TestHostNameRefusals(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files map[string]string
		want  error
	}{
		{"two logs", map[string]string{"/raft/a/log": "", "/raft/b/log": ""}, errManyHosts},
		{"no owner", map[string]string{"/raft/a/log": ""}, os.ErrNotExist},
		{"torn owner", map[string]string{"/raft/a/log": "", "/raft/dragonboat.ds": "torn"}, errBadOwner},
		{"garbled owner", map[string]string{"/raft/a/log": "", "/raft/dragonboat.ds": "eight by and what follows"}, errBadOwner},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fs := vfs.NewMem()
			for path, content := range tc.files {
				if err := fs.MkdirAll(fs.PathDir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := replaceFile(fs, fs.PathDir(path), fs.PathBase(path), []byte(content)); err != nil {
					t.Fatal(err)
				}
			}
			before := fmt.Sprint(fs)
			if err := nameHost(fs, "/raft", "here"); !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
			if after := fmt.Sprint(fs); after != before {
				t.Errorf("the files were changed:\n%s\nbecame\n%s", before, after)
			}
		})
	}
}
