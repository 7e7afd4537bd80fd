package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/latchkey-db/latchkey/e2e/faults"
	"github.com/latchkey-db/latchkey/e2e/harness"
)

// withLater starts a cluster of some nodes which more may join.
func withLater(t *testing.T, shards, nodes, later int, args ...string) *cluster {
	t.Helper()
	c := layNodes(t, shards, nil, faults.Options{Nodes: nodes, Later: later, Args: args})
	c.must(c.Start(c.bound()))
	return c
}

// dial returns a client of one node, with what else its configuration has; the test's end closes it.
func (c *cluster) dial(n *faults.Node, with clientv3.Config) *clientv3.Client {
	c.t.Helper()
	with.Endpoints, with.DialTimeout = []string{n.Client}, 5*time.Second
	client, err := clientv3.New(with)
	c.must(err)
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}

// idOf returns the id of a node's member, as a client knows it.
func (c *cluster) idOf(through *clientv3.Client, n *faults.Node) uint64 {
	c.t.Helper()
	list, err := through.MemberList(c.bound())
	c.must(err)
	for _, m := range list.Members {
		if m.Name == n.Name {
			return m.ID
		}
	}
	c.t.Fatalf("no member %s in %v", n.Name, list.Members)
	return 0
}

// A01: a token is good on every node, restarted and new ones too, or refused in the way that makes
// clients log in again.
func TestTokensOnNewMembers(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		for kind, flag := range map[string]string{"simple": "--auth-token=simple", "jwt": harness.JWTFlag(t)} {
			t.Run(kind, func(t *testing.T) {
				c := withLater(t, shards, 3, 1, flag, "--bcrypt-cost", "4")
				tokensOnNewMembers(c)
			})
		}
	})
}

func tokensOnNewMembers(c *cluster) {
	c.t.Helper()
	ctx := c.bound()
	first := c.clients[0]
	_, err := first.UserAdd(ctx, "root", "root")
	c.must(err)
	_, err = first.UserGrantRole(ctx, "root", "root")
	c.must(err)
	_, err = first.UserAdd(ctx, "u", "u")
	c.must(err)
	_, err = first.RoleAdd(ctx, "r")
	c.must(err)
	_, err = first.RoleGrantPermission(ctx, "r", "k", "", clientv3.PermissionType(clientv3.PermReadWrite))
	c.must(err)
	_, err = first.UserGrantRole(ctx, "u", "r")
	c.must(err)
	_, err = first.AuthEnable(ctx)
	c.must(err)
	auth, err := first.Authenticate(ctx, "u", "u")
	c.must(err)
	user := clientv3.Config{Username: "u", Password: "u"}
	_, err = c.dial(c.Nodes[0], user).Put(ctx, "k", "v")
	c.must(err)

	nodes := slices.Clone(c.Nodes)
	long := make(map[*faults.Node]*clientv3.Client)
	for _, n := range c.Nodes {
		long[n] = c.dial(n, user)
	}
	for _, n := range c.Nodes {
		c.must(n.Kill())
		c.must(n.Launch())
		c.healthy()
	}
	root := c.dial(c.Nodes[1], clientv3.Config{Username: "root", Password: "root"})
	c.must(c.Join(ctx, root, c.Later[0], false))
	nodes = append(nodes, c.Later[0])
	long[c.Later[0]] = c.dial(c.Later[0], user)
	for _, n := range nodes {
		conn, err := grpc.NewClient(n.Client, grpc.WithTransportCredentials(insecure.NewCredentials()))
		c.must(err)
		_, err = pb.NewKVClient(conn).Range(metadata.AppendToOutgoingContext(ctx, "token", auth.Token), &pb.RangeRequest{Key: []byte("k")})
		if err != nil && !errors.Is(rpctypes.Error(err), rpctypes.ErrInvalidAuthToken) {
			c.t.Errorf("%s, with the token from before: %v", n.Name, err)
		}
		c.must(conn.Close())
		got, err := long[n].Get(ctx, "k")
		if err != nil || len(got.Kvs) != 1 {
			c.t.Errorf("%s, with name and password: %v, %v", n.Name, got, err)
		}
	}
}

// M01: a removed member that comes back with its old data refuses to run, and takes part as a new member with an
// empty directory, under the same name and address.
func TestRemovedMemberComesBack(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := withLater(t, shards, 3, 0)
		ctx := c.bound()
		first, gone := c.clients[0], c.Nodes[2]
		for _, key := range inShards(shards, "k") {
			_, err := first.Put(ctx, key, "before")
			c.must(err)
		}
		id := c.idOf(first, gone)
		c.must(gone.Kill())
		c.until("the removal", func(ctx context.Context) error {
			_, err := first.MemberRemove(ctx, id)
			return err
		})
		c.must(gone.Launch())
		ended, how := gone.Ended(patience)
		if !ended || how == nil || !strings.Contains(gone.Log(), "the member has been permanently removed from the cluster") {
			t.Fatalf("a removed member came back: it ended %v, with %v; its log:\n%s", ended, how, gone.Log())
		}
		list, err := first.MemberList(ctx)
		c.must(err)
		if len(list.Members) != 2 {
			t.Errorf("members %v", list.Members)
		}
		c.must(gone.Lose())
		c.must(c.Join(ctx, first, gone, false))
		if now := c.idOf(first, gone); now == id {
			t.Errorf("the new member has the id of the removed one, %x", id)
		}
		for _, key := range inShards(shards, "k") {
			got, err := c.clients[2].Get(ctx, key)
			if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "before" {
				t.Errorf("%s on the new member: %v, %v", key, got, err)
			}
		}
	})
}

// M05: a learner answers what etcd's does, and refuses the rest with etcd's text; clients that ask for the endpoints leave
// it out.
func TestLearnersDoNotServe(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := withLater(t, shards, 1, 1)
		ctx := c.bound()
		_, err := c.clients[0].Put(ctx, "k", "v")
		c.must(err)
		n := c.Later[0]
		c.must(c.Join(ctx, c.clients[0], n, true))
		learner := c.dial(n, clientv3.Config{})
		lease, err := c.clients[0].Grant(ctx, 60)
		c.must(err)
		conn := learner.ActiveConnection()
		for what, call := range map[string]func() error{
			"range":  func() error { _, err := learner.Get(ctx, "k"); return err },
			"put":    func() error { _, err := learner.Put(ctx, "k", "other"); return err },
			"delete": func() error { _, err := learner.Delete(ctx, "k"); return err },
			"txn":    func() error { _, err := learner.Txn(ctx).Then(clientv3.OpPut("k", "other")).Commit(); return err },
			"grant":  func() error { _, err := learner.Grant(ctx, 60); return err },
			"revoke": func() error { _, err := learner.Revoke(ctx, lease.ID); return err },
			"add":    func() error { _, err := learner.MemberAdd(ctx, []string{"http://127.0.0.1:1"}); return err },
			"watch": func() error {
				w, err := pb.NewWatchClient(conn).Watch(ctx)
				if err != nil {
					return err
				}
				_, err = w.Recv()
				return err
			},
			"keep alive": func() error {
				k, err := pb.NewLeaseClient(conn).LeaseKeepAlive(ctx)
				if err != nil {
					return err
				}
				_, err = k.Recv()
				return err
			},
		} {
			if err := call(); !strings.Contains(fmt.Sprint(err), "etcdserver: rpc not supported for learner") {
				t.Errorf("%s on a learner: %v", what, err)
			}
		}
		c.until("the learner's data", func(ctx context.Context) error {
			got, err := learner.Get(ctx, "k", clientv3.WithSerializable())
			if err == nil && (len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "v") {
				err = errors.New("not there yet")
			}
			return err
		})
		s, err := learner.Status(ctx, n.Client)
		if err != nil || !s.IsLearner || s.Header.MemberId != c.idOf(c.clients[0], n) {
			t.Errorf("status of a learner: %v, %v", s, err)
		}
		list, err := c.clients[0].MemberList(ctx)
		c.must(err)
		learners := 0
		for _, m := range list.Members {
			if m.IsLearner {
				learners++
			}
		}
		if len(list.Members) != 2 || learners != 1 {
			t.Errorf("members %v", list.Members)
		}
		synced := c.dial(c.Nodes[0], clientv3.Config{})
		c.must(synced.Sync(ctx))
		if got := synced.Endpoints(); !slices.Equal(got, []string{"http://" + c.Nodes[0].Client}) {
			t.Errorf("a client that asked for the endpoints has %v", got)
		}
		c.until("the promotion", func(ctx context.Context) error {
			_, err := c.clients[0].MemberPromote(ctx, s.Header.MemberId)
			return err
		})
		_, err = learner.Put(ctx, "k", "promoted")
		c.must(err)
	})
}

// M07: the last member stays, the leader can be removed through itself, and a second removal says that there is no such member.
func TestRemovingTheLeaderAndTheLast(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		c := withLater(t, shards, 3, 0, "--strict-reconfig-check=false")
		c.Nodes, c.clients = slices.Clone(c.Nodes), slices.Clone(c.clients)
		ctx := c.bound()
		for len(c.Nodes) > 1 {
			at := c.systemLeader()
			n, through := c.Nodes[at], c.clients[at]
			id := c.idOf(through, n)
			resp, err := through.MemberRemove(ctx, id)
			if err != nil {
				t.Fatalf("the leader, through itself: %v", err)
			}
			if slices.ContainsFunc(resp.Members, func(m *pb.Member) bool { return m.ID == id }) {
				t.Errorf("%x is removed and among the members %v", id, resp.Members)
			}
			if ended, _ := n.Ended(patience); !ended {
				t.Fatal("the removed leader does not end")
			}
			c.Nodes, c.clients = slices.Delete(c.Nodes, at, at+1), slices.Delete(c.clients, at, at+1)
			for _, client := range c.clients {
				if _, err := client.MemberRemove(ctx, id); !errors.Is(err, rpctypes.ErrMemberNotFound) {
					t.Errorf("again: %v", err)
				}
				if _, err := client.Put(ctx, "k", "v"); err != nil {
					t.Errorf("put when the leader has been removed: %v", err)
				}
			}
		}
		last, through := c.Nodes[0], c.clients[0]
		for range 2 {
			_, err := through.MemberRemove(ctx, c.idOf(through, last))
			if !errors.Is(err, rpctypes.ErrMemberNotEnoughStarted) {
				t.Errorf("the last one: %v", err)
			}
			_, err = through.Put(ctx, "k", "last")
			c.must(err)
			c.must(last.Kill())
			c.must(last.Launch())
			c.healthy()
		}
	})
}

// M03: a node of another cluster whose flags name ours, and one that comes to the address of a member with the directory of an older
// cluster, are refused, and say so. Ours goes on as before.
func TestForeignCluster(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		var urls, named []string
		for i := range 4 {
			urls = append(urls, "http://"+harness.FreeAddr(t))
			named = append(named, fmt.Sprintf("n%d=%s", i, urls[i]))
		}
		root := t.TempDir()
		node := func(i int, directory string, members []string) *harness.Process {
			p := &harness.Process{T: t, Dir: filepath.Join(root, directory), Addr: harness.FreeAddr(t), Args: append([]string{
				"--name", fmt.Sprint("n", i), "--listen-peer-urls", urls[i], "--initial-advertise-peer-urls", urls[i],
				"--initial-cluster", strings.Join(members, ","),
			}, splitsFlag(shards)...)}
			t.Cleanup(func() {
				if p.Cmd != nil {
					p.Kill()
				}
			})
			return p
		}
		start := func(cluster string, count int) (nodes []*harness.Process) {
			for i := range count {
				nodes = append(nodes, node(i, fmt.Sprint(cluster, i), named[:3]))
				nodes[i].Launch()
			}
			return nodes
		}
		value := func(p *harness.Process, write string) (string, uint64) {
			c := p.Client()
			defer c.Close()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			for _, key := range inShards(shards, "k") {
				if write != "" {
					if _, err := c.Put(ctx, key, write); err != nil {
						t.Fatal(err)
					}
				}
			}
			got, err := c.Get(ctx, inShards(shards, "k")[0])
			if err != nil || len(got.Kvs) != 1 {
				t.Fatalf("%v, %v", got, err)
			}
			list, err := c.MemberList(ctx)
			if err != nil || len(list.Members) != 3 {
				t.Fatalf("%v, %v", list, err)
			}
			return string(got.Kvs[0].Value), got.Header.ClusterId
		}
		older := start("older", 3)
		_, old := value(older[0], "of the older")
		for _, p := range older {
			p.Kill()
		}
		ours := start("ours", 2)
		_, id := value(ours[0], "ours")
		if id == old {
			t.Errorf("two clusters have the id %x", id)
		}
		code, said := node(2, "older2", named[:3]).RunToEnd()
		if code == 0 || !strings.Contains(said, fmt.Sprintf("it belongs to cluster %x, this node to cluster %x", old, id)) {
			t.Errorf("the directory of the older cluster ended with %d: %s", code, said)
		}
		for said = ""; !strings.Contains(said, "is no member of the cluster"); {
			foreign := node(3, "foreign", named)
			foreign.Launch()
			if pause(t.Context(), time.Second); t.Context().Err() != nil {
				t.Fatalf("the foreign node is not refused: %s", said)
			}
			foreign.Kill()
			said = foreign.Log.String()
		}
		if v, now := value(ours[1], ""); v != "ours" || now != id {
			t.Errorf("%q in cluster %x, want %x", v, now, id)
		}
	})
}
