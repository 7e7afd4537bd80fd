package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	raftvfs "github.com/lni/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/config"
	"github.com/latchkey-db/latchkey/internal/datadir"
	"github.com/latchkey-db/latchkey/internal/freeport"
	"github.com/latchkey-db/latchkey/system"
)

// answers waits until a URL answers with a status, and returns the body.
func answers(t *testing.T, url string, want int) (body string) {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second}
	until(t, url+" to answer", func() bool {
		resp, err := client.Get(url)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		check(t, err)
		body = string(b)
		return resp.StatusCode == want
	})
	return body
}

// A node that waits for the first quorum of its cluster says on the metrics port that it
// lives, and is not ready.
func TestProbesBeforeTheFirstQuorum(t *testing.T) {
	addrs, err := freeport.Addrs(5)
	check(t, err)
	clients, metrics := "http://"+addrs[3], "http://"+addrs[4]
	cfg, err := config.Parse([]string{
		"--name", "n0", "--data-dir", "/n0", "--initial-cluster", "n0=http://" + addrs[0] + ",n1=http://" + addrs[1] + ",n2=http://" + addrs[2],
		"--listen-peer-urls", "http://" + addrs[0], "--initial-advertise-peer-urls", "http://" + addrs[0],
		"--listen-client-urls", clients, "--advertise-client-urls", clients, "--listen-metrics-urls", metrics,
	}, nil)
	check(t, err)
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := Start(Options{Config: cfg, StateFS: vfs.NewMem(), RaftFS: raftvfs.NewMem(), Stop: stop, Log: slog.New(slog.DiscardHandler)})
		ended <- err
	}()
	if body := answers(t, metrics+"/livez?verbose", http.StatusOK); body != "[+]serializable_read ok\nok\n" {
		t.Errorf("/livez: %s", body)
	}
	answers(t, metrics+"/health?serializable=true", http.StatusOK)
	if body := answers(t, metrics+"/health", http.StatusServiceUnavailable); !strings.Contains(body, "RAFT NO LEADER") {
		t.Errorf("/health: %s", body)
	}
	if body := answers(t, metrics+"/readyz", http.StatusServiceUnavailable); !strings.Contains(body, "[-]linearizable_read failed: etcdserver: no leader") {
		t.Errorf("/readyz: %s", body)
	}
	if body := answers(t, metrics+"/metrics", http.StatusOK); !strings.Contains(body, "go_goroutines") {
		t.Error("/metrics has no goroutines")
	}
	close(stop)
	if err := <-ended; !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
}

// Only a node that was a member with the data directory that it has serves before the others
// have judged it: one that lost its directory may not take part in the shards' logs again.
func TestEarlyIsForMembers(t *testing.T) {
	const self = 7
	dir, err := datadir.Open(datadir.Config{FS: vfs.NewMem(), Path: "/n", New: datadir.Identity{NodeID: self}})
	check(t, err)
	defer func() { check(t, dir.Close()) }()
	n := &Node{dir: dir}
	for _, test := range []struct {
		name     string
		cluster  uint64
		instance string
		want     bool
	}{
		{"no cluster yet", 0, "", false},
		{"not announced yet", 1, "", false},
		{"another directory", 1, "another", false},
		{"a member", 1, dir.Identity().Instance, true},
	} {
		state := &system.State{Nodes: map[uint64]system.NodeRecord{self: {ID: self, Instance: test.instance}}}
		state.Cluster.ID = test.cluster
		if got := n.joined(state); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

// A token ends with the processes that knew it. One that was made while a node was away does
// not come alive there when the node, which serves early, hears of it at last.
func TestTokensOfBeforeAnEarlyStart(t *testing.T) {
	c := newCluster(t, 3)
	c.start(c.machines...)
	left := c.machines[0]
	n := c.machines[1].node
	for _, r := range []*pb.InternalRaftRequest{
		{AuthUserAdd: &pb.AuthUserAddRequest{Name: auth.Root}},
		{AuthRoleAdd: &pb.AuthRoleAddRequest{Name: auth.Root}},
		{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: auth.Root, Role: auth.Root}},
		{AuthEnable: &pb.AuthEnableRequest{}},
	} {
		r.Header = &pb.RequestHeader{Username: auth.Root}
		check(t, n.router.ChangeUsers(t.Context(), r))
	}
	c.stop(left)
	var token string
	until(t, "a token", func() (ok bool) {
		var err error
		token, err = n.router.Login(t.Context(), auth.Root, "prefix")
		return err == nil
	})
	c.stop(c.machines...)
	addrs, err := freeport.Addrs(1)
	check(t, err)
	ended := make(chan error, 1)
	go func() { ended <- left.launchOn(addrs[0], nil) }()
	answers(t, "http://"+addrs[0]+"/livez", http.StatusOK)
	c.start(c.machines[1:]...)
	check(t, <-ended)
	if _, ok := left.node.tokens.Identify(token, left.node.cluster.State().Auth.Revision); ok {
		t.Error("a token of before the start is known")
	}
}

// A survivor that is started again without a majority serves what it holds: its health,
// serializable reads and backups. When the others are back it serves all.
func TestSurvivorServesWhatItHolds(t *testing.T) {
	t.Parallel() // most of the time it waits
	for _, splits := range []string{"", "g,n,t"} {
		t.Run("splits="+splits, func(t *testing.T) {
			c := newCluster(t, 3, "--initial-splits", splits)
			c.start(c.machines...)
			held := []string{"a", "h", "z", "o", "b"}
			for _, key := range held {
				c.put(key, "v")
			}
			c.stop(c.machines...)
			left := c.machines[0]
			addrs, err := freeport.Addrs(1)
			check(t, err)
			ended := make(chan error, 1)
			go func() { ended <- left.launchOn(addrs[0], nil) }()
			answers(t, "http://"+addrs[0]+"/livez", http.StatusOK)
			answers(t, "http://"+addrs[0]+"/readyz", http.StatusServiceUnavailable)
			conn, err := grpc.NewClient(addrs[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
			check(t, err)
			defer conn.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for _, key := range held {
				resp, err := pb.NewKVClient(conn).Range(ctx, &pb.RangeRequest{Key: []byte(key), Serializable: true})
				if err != nil || len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != "v" {
					t.Errorf("%s: %v, %v", key, resp, err)
				}
			}
			var backup bytes.Buffer
			s, err := pb.NewMaintenanceClient(conn).Snapshot(ctx, &pb.SnapshotRequest{})
			check(t, err)
			for {
				part, err := s.Recv()
				if errors.Is(err, io.EOF) {
					break
				}
				check(t, err)
				backup.Write(part.Blob)
			}
			for _, key := range held {
				if kv := string([]byte{0x0a, byte(len(key))}) + key; !bytes.Contains(backup.Bytes(), []byte(kv)) {
					t.Errorf("the backup lacks %s: %q", key, backup.Bytes())
				}
			}
			select {
			case err := <-ended:
				t.Fatalf("the start ended without a majority: %v", err)
			default:
			}
			c.start(c.machines[1:]...)
			check(t, <-ended)
			_, err = pb.NewKVClient(conn).Put(ctx, &pb.PutRequest{Key: []byte("a"), Value: []byte("w")})
			check(t, err)
			answers(t, "http://"+addrs[0]+"/readyz", http.StatusOK)
		})
	}
}
