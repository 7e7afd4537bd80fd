package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	raftvfs "github.com/lni/vfs"
	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/backup"
	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/datadir"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raftlog"
	"github.com/latchkey-db/latchkey/internal/recovery"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/router"
	"github.com/latchkey-db/latchkey/shard"
)

const recoverSplits = "--initial-splits=b,c,d"

// directory names the data directory of a machine.
func (m *machine) directory() recovery.Directory {
	return recovery.Directory{Path: "/" + m.name, Work: "/work", FS: m.state, RaftFS: m.raft}
}

func directories(machines ...*machine) (dirs []recovery.Directory) {
	for _, m := range machines {
		dirs = append(dirs, m.directory())
	}
	return dirs
}

// recovered puts together what machines have, and returns it with its backup.
func recovered(t *testing.T, machines ...*machine) (*recovery.Recovered, []byte) {
	t.Helper()
	before := make([]map[string]string, len(machines))
	for i, m := range machines {
		before[i] = m.files(t)
	}
	r, err := recovery.Recover(directories(machines...))
	check(t, err)
	var out bytes.Buffer
	check(t, errors.Join(r.Save(t.Context(), &out), r.Close()))
	for i, m := range machines {
		check(t, m.state.RemoveAll("/work"))
		if d := cmp.Diff(before[i], m.files(t)); d != "" {
			t.Errorf("the directory of %s has changed: %s", m.name, d)
		}
	}
	return r, out.Bytes()
}

// files returns the content of all files of a machine.
func (m *machine) files(t *testing.T) map[string]string {
	t.Helper()
	files := make(map[string]string)
	read := func(path string, f io.ReadCloser, err error) {
		check(t, err)
		b, err := io.ReadAll(f)
		check(t, errors.Join(err, f.Close()))
		files[path] = string(b)
	}
	var states, logs func(dir string)
	states = func(dir string) {
		names, err := m.state.List(dir)
		check(t, err)
		for _, name := range names {
			path := m.state.PathJoin(dir, name)
			if info, err := m.state.Stat(path); err == nil && info.IsDir() {
				states(path)
				continue
			}
			f, err := m.state.Open(path)
			read("state "+path, f, err)
		}
	}
	logs = func(dir string) {
		names, err := m.raft.List(dir)
		check(t, err)
		for _, name := range names {
			path := m.raft.PathJoin(dir, name)
			if info, err := m.raft.Stat(path); err == nil && info.IsDir() {
				logs(path)
				continue
			}
			f, err := m.raft.Open(path)
			read("log "+path, f, err)
		}
	}
	states("/" + m.name)
	logs("/" + m.name)
	return files
}

// begin starts a node that was restored from a recovered backup.
func begin(t *testing.T, file []byte, flags ...string) *crashable {
	t.Helper()
	state := vfs.NewMem()
	check(t, Restore(parsed(t, flags...), state, copyOf(file), datadir.Restore{Bump: recovery.Bump, MarkCompacted: true}))
	return &crashable{t: t, node: startNode(t, state, raftvfs.NewMem())}
}

// contents returns the keys and the times to live of the leases of a backup.
func contents(t *testing.T, file []byte) (kvs map[string]*mvccpb.KeyValue, leases map[int64]int64) {
	t.Helper()
	kvs, leases = make(map[string]*mvccpb.KeyValue), make(map[int64]int64)
	summary, err := backup.Read(bytes.NewReader(file), int64(len(file)), backup.Contents{
		Lease: func(l *pb.LeaseGrantRequest) error { leases[l.ID] = l.TTL; return nil },
		Key:   func(kv *mvccpb.KeyValue) error { kvs[string(kv.Key)] = kv; return nil },
	})
	check(t, err)
	if summary.Bump != recovery.Bump {
		t.Errorf("the backup has revisions go on by %d", summary.Bump)
	}
	return kvs, leases
}

// usersOf returns the names of the users of a backup.
func usersOf(t *testing.T, file []byte) (names []string) {
	t.Helper()
	_, err := backup.Read(bytes.NewReader(file), int64(len(file)), backup.Contents{
		User: func(u *authpb.User) error { names = append(names, string(u.Name)); return nil },
	})
	check(t, err)
	return names
}

// level waits until all replicas have applied the same.
func (c *cluster) level() {
	c.t.Helper()
	until(c.t, "all replicas to apply the same", func() bool {
		for _, m := range c.machines[1:] {
			if m.node.cluster.Replica().Applied() != c.machines[0].node.cluster.Replica().Applied() {
				return false
			}
			for id, d := range m.node.shards {
				if d.Replica().Applied() != c.machines[0].node.shards[id].Replica().Applied() {
					return false
				}
			}
		}
		return true
	})
}

// What a cluster acknowledged is recovered from the directory of each of its nodes alone, if all had it when they
// stopped, and from all together.
func TestRecover(t *testing.T) {
	for _, flags := range [][]string{nil, {recoverSplits}} {
		t.Run(fmt.Sprint(flags), func(t *testing.T) {
			t.Parallel() // most of the time it waits
			c := newCluster(t, 3, flags...)
			c.start(c.machines...)
			live := &crashable{t: t, node: c.machines[0].node}
			fill(live)
			want, err := live.everything(0)
			check(t, err)
			users, err := live.node.router.ConfirmUsers(t.Context())
			check(t, err)
			c.level()
			c.stop(c.machines...)
			for _, machines := range [][]*machine{c.machines[:1], c.machines[1:2], c.machines[2:], c.machines} {
				r, file := recovered(t, machines...)
				if r.Revision < want.Header.Revision {
					t.Errorf("revision %d, want %d at least", r.Revision, want.Header.Revision)
				}
				for _, s := range r.Shards {
					if s.Seen != len(machines) || s.Replicas != 3 || s.Complete() != (len(machines) > 1) {
						t.Errorf("shard %+v, want %d of 3 replicas", s, len(machines))
					}
				}
				n := begin(t, file, flags...)
				n.same(want, users)
				n.goesOn(want, want.Header.Revision+recovery.Bump)
				n.stop()
			}
		})
	}
}

// A state is not fsynced with each write, and a replica does not know at once what is committed. The log has all
// that was acknowledged.
func TestRecoverWhatTheStateLacks(t *testing.T) {
	for _, flags := range [][]string{nil, {recoverSplits}} {
		t.Run(fmt.Sprint(flags), func(t *testing.T) {
			t.Parallel() // most of the time it waits
			c := newCluster(t, 3, flags...)
			for _, m := range c.machines {
				m.state = vfs.NewCrashableMem()
			}
			c.start(c.machines...)
			n := c.machines[0].node
			c.addUser("alice")
			put := func(i int) *pb.PutResponse {
				resp, err := n.router.Put(t.Context(), &pb.PutRequest{Key: []byte{"abcd"[i%4], byte(i)}, Value: fmt.Append(nil, i)})
				check(t, err)
				return resp
			}
			var last *pb.PutResponse
			for i := range 40 {
				last = put(i)
			}
			c.level()
			old := c.machines[2].state.CrashClone(vfs.CrashCloneCfg{})
			c.stop(c.machines...)
			c.machines[2].state = old
			r, file := recovered(t, c.machines[2])
			replayed := uint64(0)
			for _, s := range r.Shards[1:] {
				replayed += s.Replayed
			}
			if replayed < 40 {
				t.Fatalf("%d entries replayed; the run shows nothing", replayed)
			}
			kvs, _ := contents(t, file)
			if len(kvs) != 40 || r.Revision < last.Header.Revision {
				t.Errorf("%d keys up to revision %d, want 40 up to %d", len(kvs), r.Revision, last.Header.Revision)
			}
			if users := usersOf(t, file); !slices.Equal(users, []string{"alice"}) || r.Shards[0].Replayed == 0 {
				t.Errorf("users %q, with %d entries of the system shard replayed", users, r.Shards[0].Replayed)
			}
		})
	}
}

// The newest log wins, wherever its directory stands.
func TestRecoverTakesTheNewestLog(t *testing.T) {
	c := newCluster(t, 3, recoverSplits)
	c.start(c.machines...)
	for _, key := range []string{"a", "b", "c", "d"} {
		c.put(key, "old")
	}
	c.stop(c.machines[2])
	for _, key := range []string{"a", "b", "c", "d"} {
		c.put(key, "new")
	}
	c.addUser("alice")
	c.stop(c.machines...)
	for _, machines := range [][]*machine{{c.machines[0], c.machines[2]}, {c.machines[2], c.machines[0]}} {
		r, file := recovered(t, machines...)
		kvs, _ := contents(t, file)
		for key, kv := range kvs {
			if string(kv.Value) != "new" {
				t.Errorf("key %s is %s", key, kv.Value)
			}
		}
		if users := usersOf(t, file); !slices.Equal(users, []string{"alice"}) {
			t.Errorf("users %q", users)
		}
		for _, s := range r.Shards {
			if s.Path != c.machines[0].directory().Path || !s.Complete() {
				t.Errorf("taken: %+v", s)
			}
		}
	}
	_, file := recovered(t, c.machines[2])
	if kvs, _ := contents(t, file); len(kvs) != 4 || string(kvs["a"].Value) != "old" {
		t.Errorf("of the older directory: %v", kvs)
	}
}

// unsettled keeps transactions from being settled while it is shut, and reaches the other shards else.
type unsettled struct {
	*router.Router

	open chan struct{}
}

// await returns when it is open.
func (u *unsettled) await(ctx context.Context) error {
	select {
	case <-u.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (u *unsettled) Finish(ctx context.Context, shardID uint64, list []commit.Finish) error {
	if err := u.await(ctx); err != nil {
		return err
	}
	return u.Router.Finish(ctx, shardID, list)
}

func (u *unsettled) Settled(ctx context.Context, home uint64, id commit.ID) (commit.Outcome, error) {
	if err := u.await(ctx); err != nil {
		return commit.Outcome{}, err
	}
	return u.Router.Settled(ctx, home, id)
}

func (u *unsettled) End(ctx context.Context, home uint64, ref lease.Ref) error {
	if err := u.await(ctx); err != nil {
		return err
	}
	return u.Router.End(ctx, home, ref)
}

// shut has no node settle transactions until the function that it returns is called.
func (c *cluster) shut() (open func()) {
	shut := make(chan struct{})
	for _, m := range c.machines {
		u := &unsettled{Router: m.node.router, open: shut}
		for _, d := range m.node.shards {
			d.Connect(u)
		}
	}
	return func() { close(shut) }
}

func putBoth(value string, of ...string) *pb.TxnRequest {
	txn := &pb.TxnRequest{}
	for _, key := range of {
		txn.Success = append(txn.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
			RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte(value)},
		}})
	}
	return txn
}

// shardOf returns the shard of a key.
func (c *cluster) shardOf(key string) *shard.Data {
	at := keys.Positions(keys.Point([]byte(key)))
	id := c.machines[0].node.cluster.State().Map.Locate(at.Start, at.End)[0].Shard
	return c.leader(key).shards[id]
}

// A transaction that its home has committed is finished where it holds keys, and one that is prepared and not committed
// is dropped. A lease whose end is decided has ended.
func TestRecoverSettles(t *testing.T) {
	t.Parallel() // most of the time it waits
	c := newCluster(t, 3, recoverSplits)
	c.start(c.machines...)
	n := c.machines[0].node
	for _, id := range []int64{7, 8} {
		_, err := n.router.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: id, TTL: 1 + 1000*(id-7)})
		check(t, err)
		for _, key := range []string{"a/lease", "b/lease", "c/lease", "d/lease"} {
			_, err := n.router.Put(t.Context(), &pb.PutRequest{Key: fmt.Append(nil, key, id), Lease: id})
			check(t, err)
		}
	}
	c.shut()
	resp, err := n.router.Txn(t.Context(), putBoth("committed", "a/x", "b/x", "c/x", "d/x"))
	check(t, err)
	ids := make(map[string]uint64)
	for _, key := range []string{"a", "b", "c", "d"} {
		ids[key] = c.shardOf(key).Replica().ShardID()
	}
	for _, key := range []string{"c", "d"} {
		// Only the router coordinates; this one is of a node that is gone.
		step := &shard.Step{Patient: true, Prepare: &commit.Prepare{
			ID: commit.ID{Node: 9, Boot: 1, Counter: 1}, Open: 1, Home: ids["c"], Writes: keys.NewSet(keys.Point([]byte(key + "/y"))),
		}}
		_, err := c.shardOf(key).Take(t.Context(), nil, step)
		check(t, err)
	}
	until(t, "an end that is decided", func() bool {
		for _, m := range c.machines {
			for _, d := range m.node.shards {
				if slices.ContainsFunc(d.Leases(), func(r lease.Record) bool { return r.ID == 7 && r.Ending && r.Intact }) {
					return true
				}
			}
		}
		return false
	})
	c.level()
	c.stop(c.machines...)
	r, file := recovered(t, c.machines[2])
	if s := r.Settled; s.Finished != 3 || s.Dropped != 1 || len(s.Torn) > 0 {
		t.Errorf("settled %+v", s)
	}
	kvs, leases := contents(t, file)
	want := []string{"a/lease8", "a/x", "b/lease8", "b/x", "c/lease8", "c/x", "d/lease8", "d/x"}
	if got := slices.Sorted(maps.Keys(kvs)); !slices.Equal(got, want) {
		t.Errorf("keys %q, want %q", got, want)
	}
	for key, kv := range kvs {
		if strings.HasSuffix(key, "/x") && (kv.ModRevision != resp.Header.Revision || string(kv.Value) != "committed") {
			t.Errorf("key %s is %v, want what was committed at %d", key, kv, resp.Header.Revision)
		}
	}
	if !maps.Equal(leases, map[int64]int64{8: 1001}) {
		t.Errorf("leases %v", leases)
	}
	n2 := begin(t, file)
	defer n2.stop()
	_, err = n2.node.router.Txn(t.Context(), putBoth("later", "c/y", "d/y", "a/x", "b/x"))
	check(t, err)
}

// forget removes what a machine that is stopped has of a shard's log, as if it had never had a replica.
func (m *machine) forget(t *testing.T, shardID uint64) {
	t.Helper()
	l, err := raftlog.Open(raftlog.Options{FS: m.raft, Dir: "/" + m.name + "/raft/data/log", Made: true})
	check(t, err)
	infos, err := l.ListNodeInfo()
	check(t, err)
	for _, info := range infos {
		if info.ShardID == shardID {
			check(t, l.RemoveNodeData(shardID, info.ReplicaID))
		}
	}
	check(t, l.Close())
}

// Of two shards one is of an earlier moment. It is told which transactions have lost a part, keys of leases that have ended
// since are gone, and leases whose grants are lost can be renewed.
func TestRecoverTorn(t *testing.T) {
	for _, prepared := range []bool{false, true} {
		t.Run(fmt.Sprint("prepared ", prepared), func(t *testing.T) {
			t.Parallel() // most of the time it waits
			c := newCluster(t, 3, recoverSplits)
			c.start(c.machines...)
			n := c.machines[0].node
			c.put("d/x", "before")
			// The leases' homes are on one shard, and their keys there and on the other.
			late := c.shardOf("d/x").Replica().ShardID()
			var ended, lost int64
			for id := int64(1); ended == 0 || lost == 0; id++ {
				at := keys.LeasePositions(id)
				switch home := n.cluster.State().Map.Locate(at.Start, at.End)[0].Shard; {
				case home == late && lost == 0:
					lost = id
				case home != late && ended == 0:
					ended = id
				}
			}
			_, err := n.router.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: ended, TTL: 1000})
			check(t, err)
			_, err = n.router.Put(t.Context(), &pb.PutRequest{Key: []byte("d/ended"), Lease: ended})
			check(t, err)
			open := c.shut()
			var resp *pb.TxnResponse
			txn := func() {
				resp, err = n.router.Txn(t.Context(), putBoth("after", "a/x", "d/x"))
				check(t, err)
			}
			if prepared {
				txn()
			}
			c.level()
			c.stop(c.machines[2])
			if prepared {
				open()
				c.holds("d/x", "after")
			} else {
				txn()
			}
			revoked, err := n.router.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: ended})
			check(t, err)
			if prepared {
				until(t, "the home to forget the transaction", func() bool {
					for _, m := range c.machines[:2] {
						for _, d := range m.node.shards {
							if u := d.Unsettled(); u.Unfinished > 0 || u.Holds > 0 {
								return false
							}
						}
					}
					return true
				})
			}
			_, err = n.router.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: lost, TTL: 1000})
			check(t, err)
			_, err = n.router.Put(t.Context(), &pb.PutRequest{Key: []byte("a/lost"), Lease: lost})
			check(t, err)
			c.stop(c.machines...)
			c.machines[0].forget(t, late)

			if _, err := recovery.Recover(directories(c.machines[0])); !errors.Is(err, recovery.ErrNotCovered) {
				t.Errorf("without a replica of shard %d: %v", late, err)
			}
			check(t, c.machines[0].state.RemoveAll("/work"))
			r, file := recovered(t, c.machines[0], c.machines[2])
			want := []shard.Torn{{Rev: resp.Header.Revision, ShardID: late}}
			if !prepared {
				want = append(want, shard.Torn{Rev: revoked.Header.Revision, ShardID: late})
			}
			if !slices.Equal(r.Settled.Torn, want) {
				t.Errorf("torn %+v, want %+v", r.Settled, want)
			}
			kvs, leases := contents(t, file)
			if string(kvs["a/x"].GetValue()) != "after" || string(kvs["d/x"].GetValue()) != "before" || kvs["a/lost"] == nil || kvs["d/ended"] != nil {
				t.Errorf("keys %v", kvs)
			}
			if leases[lost] != recovery.LostTTL || r.Leases.Lost != 1 {
				t.Errorf("leases %v, %d lost", leases, r.Leases.Lost)
			}
			begin(t, file).stop()
		})
	}
}

// Directories that nothing can be made of are refused, with what to do.
func TestRecoverRefuses(t *testing.T) {
	t.Parallel() // most of the time it waits
	clusters := []*cluster{newCluster(t, 3), newCluster(t, 3)}
	var all []*machine
	for _, c := range clusters {
		c.start(c.machines...)
		c.put("a", "1")
		all = append(all, c.machines...)
	}
	refused := func(name string, want error, text string, dirs ...recovery.Directory) {
		t.Helper()
		r, err := recovery.Recover(dirs)
		if err == nil {
			check(t, r.Close())
		}
		if !errors.Is(err, want) || !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("%s: %v, want %v with %q", name, err, want, text)
		}
		for _, d := range dirs {
			check(t, d.FS.RemoveAll("/work"))
		}
	}
	refused("running", datadir.ErrInUse, "", all[0].directory())
	for _, c := range clusters {
		c.stop(c.machines...)
	}
	// Clusters have one deployment id if they have one token.
	refused("of two clusters", recovery.ErrMixed, "different clusters", all[1].directory(), all[4].directory())
	twice := all[1].directory()
	twice.FS = vfs.NewMem()
	ok, err := vfs.Clone(all[1].state, twice.FS, twice.Path, twice.Path)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	refused("one node twice", recovery.ErrMixed, "one node", all[1].directory(), twice)
	none := all[1].directory()
	none.Path = "/none"
	refused("no directory", datadir.ErrNothing, "node.json", none)

	change := func(m *machine, path string, at func(size int64) int64) {
		f, err := m.raft.OpenForAppend(path)
		check(t, err)
		info, err := f.Stat()
		check(t, err)
		_, err = f.WriteAt([]byte{0xff}, at(info.Size()))
		check(t, errors.Join(err, f.Close()))
	}
	dir := all[2].directory().Path + "/raft/data/log"
	names, err := all[2].raft.List(dir)
	check(t, err)
	slices.Sort(names)
	change(all[2], all[2].raft.PathJoin(dir, names[len(names)-1]), func(int64) int64 { return 40 })
	refused("damaged log", raftlog.ErrDamaged, "name it no more if", all[2].directory())

	identity, err := all[1].state.Open(all[1].directory().Path + "/node.json")
	check(t, err)
	b, err := io.ReadAll(identity)
	check(t, errors.Join(err, identity.Close()))
	rewrite := func(name string, want error, text, from, to string) {
		t.Helper()
		if !bytes.Contains(b, []byte(from)) {
			t.Fatalf("no %s in %s", from, b)
		}
		f, err := all[1].state.Create(all[1].directory().Path+"/node.json", vfs.WriteCategoryUnspecified)
		check(t, err)
		_, err = f.Write(bytes.Replace(b, []byte(from), []byte(to), 1))
		check(t, errors.Join(err, f.Close()))
		refused(name, want, text, all[1].directory())
	}
	rewrite("later format", datadir.ErrFormat, "a later version", `"format": 2`, `"format": 4`)
	rewrite("cut first start", datadir.ErrNothing, "cut", `"whole": true`, `"whole": false`)
	rewrite("other parts", datadir.ErrTorn, "belongs to another", `"instance": "`, `"instance": "0`)
	state := vfs.NewMem()
	check(t, Restore(parsed(t), state, copyOf([]byte("a backup")), datadir.Restore{}))
	refused("not loaded", datadir.ErrNothing, "backup", recovery.Directory{Path: "/latchkey", Work: "/work", FS: state, RaftFS: raftvfs.NewMem()})
}

// Who has no vote does not count for a majority of what was looked at, and the directory of a node that was removed is old.
func TestRecoverOfChangedMembers(t *testing.T) {
	t.Parallel() // most of the time it waits
	c := newCluster(t, 3, recoverSplits)
	c.start(c.machines...)
	learner, _ := c.add("learner", true)
	c.start(learner)
	gone := c.machines[2]
	c.remove(gone, gone.idOf())
	c.put("a", "last")
	c.level()
	c.stop(c.machines...)
	r, file := recovered(t, c.machines[0], learner)
	for _, s := range r.Shards {
		if s.Seen != 1 || s.Replicas != 2 || s.Complete() {
			t.Errorf("shard %+v, want 1 of 2 replicas", s)
		}
	}
	if kvs, _ := contents(t, file); string(kvs["a"].Value) != "last" {
		t.Errorf("keys %v", kvs)
	}
	_, err := recovery.Recover(directories(c.machines[0], gone))
	if !errors.Is(err, recovery.ErrMixed) || !strings.Contains(fmt.Sprint(err), "was removed from the cluster") {
		t.Errorf("with the directory of a removed node: %v", err)
	}
}
