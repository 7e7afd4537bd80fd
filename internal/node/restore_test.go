package node

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	raftvfs "github.com/lni/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/backup"
	"github.com/latchkey-db/latchkey/internal/config"
	"github.com/latchkey-db/latchkey/internal/datadir"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/system"
)

func parsed(t *testing.T, flags ...string) *config.Config {
	t.Helper()
	c, err := config.Parse(append([]string{"--data-dir", "/latchkey", "--listen-peer-urls", "http://127.0.0.1:0"}, flags...), nil)
	check(t, err)
	return c
}

// saved returns a backup of a node as clients save it.
func saved(t *testing.T, n *Node) []byte {
	t.Helper()
	var out bytes.Buffer
	check(t, n.router.WriteSnapshot(t.Context(), &out))
	out.Write(make([]byte, (backup.Align-out.Len()%backup.Align)%backup.Align))
	sum := sha256.Sum256(out.Bytes())
	return append(out.Bytes(), sum[:]...)
}

// copyOf writes a backup as it is.
func copyOf(file []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(file)
		return err
	}
}

// everything reads all keys as root.
func (c *crashable) everything(rev int64) (*pb.RangeResponse, error) {
	return c.node.router.Range(c.as(auth.Root), &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Revision: rev})
}

// A node that was restored begins with the keys, leases and users of the backup, whatever shards
// they were on and are on, and goes on above its revisions, also when it is started again.
func TestRestore(t *testing.T) {
	t.Parallel() // most of the time it waits
	const splits = "--initial-splits=b,c,d"
	for _, tc := range []struct {
		name     string
		from, to []string
		of       datadir.Restore
	}{
		{"one shard", nil, nil, datadir.Restore{}},
		{"four shards", []string{splits}, []string{splits}, datadir.Restore{Bump: 1000}},
		{"one to four", nil, []string{splits}, datadir.Restore{Bump: 1000, MarkCompacted: true}},
		{"four to one", []string{splits}, nil, datadir.Restore{MarkCompacted: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &crashable{t: t, node: startNode(t, vfs.NewMem(), raftvfs.NewMem(), func(o *Options) { o.Config = parsed(t, tc.from...) })}
			fill(c)
			want, err := c.everything(0)
			check(t, err)
			users, err := c.node.router.ConfirmUsers(t.Context())
			check(t, err)
			file := saved(t, c.node)
			c.stop()

			state, logs := vfs.NewMem(), raftvfs.NewMem()
			check(t, Restore(parsed(t, tc.to...), state, copyOf(file), tc.of))
			if err := Restore(parsed(t, tc.to...), state, copyOf(file), tc.of); !errors.Is(err, datadir.ErrNotEmpty) {
				t.Errorf("restored over what is there: %v", err)
			}
			start := func() { c.node = startNode(t, state, logs) }
			start()
			// There is one number more than the backup has, below which all is compacted.
			rev := want.Header.Revision + 1 + tc.of.Bump
			compacted := want.Header.Revision + 1
			if tc.of.MarkCompacted {
				compacted = rev
			}
			if got := c.node.router.Revision(); got != rev {
				t.Errorf("revision %d, want %d", got, rev)
			}
			c.same(want, users)
			if _, err := c.everything(compacted - 1); !errors.Is(err, mvcc.ErrCompacted) {
				t.Errorf("a read at revision %d, want below the compaction: %v", compacted-1, err)
			}
			if _, err := c.everything(compacted); err != nil {
				t.Errorf("a read at revision %d: %v", compacted, err)
			}
			c.stop()
			start()
			defer c.stop()
			if _, err := state.Stat("/latchkey/restore"); err == nil {
				t.Error("the backup is still there, with the hashes of passwords")
			}
			c.same(want, users)
			c.goesOn(want, rev)
		})
	}
}

// fill puts keys, a lease with keys everywhere, and users into a node.
func fill(c *crashable) {
	c.t.Helper()
	ctx := c.t.Context()
	_, err := c.node.router.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: 5, TTL: 1000})
	check(c.t, err)
	for i := range 40 {
		key := []byte{"abcd"[i%4], '/', byte('a' + i%8)}
		put := &pb.PutRequest{Key: key, Value: fmt.Append(nil, "value", i), Lease: 5 * int64(i/4%2)}
		_, err := c.node.router.Put(ctx, put)
		check(c.t, err)
	}
	_, err = c.node.router.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte("c/c")})
	check(c.t, err)
	both := &pb.TxnRequest{}
	for _, key := range []string{"a/y", "a/x"} {
		both.Success = append(both.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key)}}})
	}
	_, err = c.node.router.Txn(ctx, both)
	check(c.t, err)
	// The newest change, of which the backup knows no key.
	_, err = c.node.router.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte("d/d")})
	check(c.t, err)
	c.enableUsers()
	grant, _ := permission("a", "b")
	c.change(grant)
}

// same checks that keys and users are as they were.
func (c *crashable) same(want *pb.RangeResponse, users *auth.State) {
	c.t.Helper()
	got, err := c.everything(0)
	check(c.t, err)
	if d := cmp.Diff(want.Kvs, got.Kvs, protocmp.Transform()); d != "" {
		c.t.Error("keys", d)
	}
	now, err := c.node.router.ConfirmUsers(c.t.Context())
	check(c.t, err)
	if now.Enabled != users.Enabled || now.Revision != users.Revision {
		c.t.Errorf("settings %+v, want %+v", now.Settings, users.Settings)
	}
	if d := cmp.Diff(users.Users, now.Users, cmpopts.EquateEmpty()) + cmp.Diff(users.Roles, now.Roles); d != "" {
		c.t.Error("users", d)
	}
	lease, err := c.node.router.LeaseTimeToLive(c.as(auth.Root), &pb.LeaseTimeToLiveRequest{ID: 5, Keys: true})
	if err != nil || lease.GrantedTTL != 1000 || lease.TTL < 900 || len(lease.Keys) == 0 {
		c.t.Errorf("lease %v, %v", lease, err)
	}
}

// goesOn checks that rights hold, that new revisions are above rev, and that a lease ends with all
// of its keys.
func (c *crashable) goesOn(want *pb.RangeResponse, rev int64) {
	c.t.Helper()
	if _, err := c.node.router.Put(c.as("u"), &pb.PutRequest{Key: []byte("d")}); !errors.Is(err, auth.ErrPermissionDenied) {
		c.t.Errorf("a write without the right: %v", err)
	}
	put, err := c.node.router.Put(c.as("u"), &pb.PutRequest{Key: []byte("a/lock")})
	check(c.t, err)
	if put.Header.Revision <= rev {
		c.t.Errorf("a key of revision %d, want above %d", put.Header.Revision, rev)
	}
	left := 1
	for _, kv := range want.Kvs {
		if kv.Lease == 0 {
			left++
		}
	}
	_, err = c.node.router.LeaseRevoke(c.as(auth.Root), &pb.LeaseRevokeRequest{ID: 5})
	check(c.t, err)
	if got, err := c.everything(0); err != nil || len(got.Kvs) != left || left == len(want.Kvs)+1 {
		c.t.Errorf("%d keys without the lease's, want %d of %d, %v", len(got.GetKvs()), left, len(want.Kvs)+1, err)
	}
}

// A first start that is cut begins again with the backup, and one as another node, with other
// splits or with a damaged backup is refused.
func TestRestoredStarts(t *testing.T) {
	c := &crashable{t: t, node: startNode(t, vfs.NewMem(), raftvfs.NewMem())}
	fill(c)
	file := saved(t, c.node)
	c.stop()
	state := vfs.NewMem()
	check(t, Restore(parsed(t), state, copyOf(file), datadir.Restore{}))
	refused := func(want error, flags ...string) {
		t.Helper()
		n, err := tryStart(t, state, flags...)
		if err == nil {
			check(t, n.Stop(context.Background()))
		}
		if !errors.Is(err, want) {
			t.Errorf("%q: %v", flags, err)
		}
	}
	refused(system.ErrSplits, "--initial-splits=x")
	refused(datadir.ErrRestored, "--initial-cluster-token=other")
	c.node = startNode(t, state, raftvfs.NewMem())
	got, err := c.everything(0)
	if err != nil || len(got.Kvs) == 0 {
		t.Errorf("%v, %v", got, err)
	}
	c.stop()

	state = vfs.NewMem()
	file[len(file)/2] ^= 1
	check(t, Restore(parsed(t), state, copyOf(file), datadir.Restore{}))
	refused(backup.ErrDamaged)
	refused(backup.ErrDamaged)
	check(t, state.Remove("/latchkey/node.json"))
	refused(datadir.ErrTorn)
}

func tryStart(t *testing.T, state vfs.FS, flags ...string) (*Node, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	return Start(Options{Config: parsed(t, flags...), StateFS: state, RaftFS: raftvfs.NewMem(), Listeners: []net.Listener{l}, Log: slog.New(slog.DiscardHandler)})
}

// The nodes of a cluster that are restored from one backup make one cluster, which has the same on
// each; a node that was restored otherwise is let in by none.
func TestRestoredCluster(t *testing.T) {
	t.Parallel() // most of the time it waits
	from := &crashable{t: t, node: startNode(t, vfs.NewMem(), raftvfs.NewMem())}
	fill(from)
	want, err := from.everything(0)
	check(t, err)
	users, err := from.node.router.ConfirmUsers(t.Context())
	check(t, err)
	file := saved(t, from.node)
	from.stop()
	c := newCluster(t, 3, "--initial-splits=b,c,d")
	for i, m := range c.machines {
		cfg, err := config.Parse(m.flags, nil)
		check(t, err)
		check(t, Restore(cfg, m.state, copyOf(file), datadir.Restore{Bump: int64(i / 2)}))
	}
	c.start(c.machines[:2]...)
	for _, m := range c.machines[:2] {
		(&crashable{t: t, node: m.node}).same(want, users)
	}
	secret := func(m *machine) string { return m.node.dir.Identity().PeerSecret }
	if secret(c.machines[0]) != secret(c.machines[1]) {
		t.Error("nodes of one backup have different secrets")
	}
	if err := c.machines[2].launch(nil); !errors.Is(err, ErrRefused) {
		t.Errorf("a node that was restored otherwise: %v", err)
	}
}
