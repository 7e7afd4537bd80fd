package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

func TestJudge(t *testing.T) {
	for _, tc := range []struct {
		nodes int
		sums  map[uint64]uint32
		want  []uint64
	}{
		{3, map[uint64]uint32{1: 7, 2: 7, 3: 7}, nil},
		{3, map[uint64]uint32{1: 7}, nil},
		{3, map[uint64]uint32{1: 7, 2: 7, 3: 8}, []uint64{3}},
		{3, map[uint64]uint32{1: 8, 2: 7, 3: 7}, []uint64{1}},
		{3, map[uint64]uint32{1: 7, 2: 8}, []uint64{wholeCluster}},
		{3, map[uint64]uint32{1: 7, 2: 8, 3: 9}, []uint64{wholeCluster}},
		{2, map[uint64]uint32{1: 7, 2: 8}, []uint64{wholeCluster}},
		{4, map[uint64]uint32{1: 7, 2: 7, 3: 8, 4: 8}, []uint64{wholeCluster}},
		{5, map[uint64]uint32{1: 7, 2: 8, 3: 7, 4: 9, 5: 7}, []uint64{2, 4}},
	} {
		if got := judge(tc.nodes, tc.sums); !slices.Equal(got, tc.want) {
			t.Errorf("of %d nodes with %v: %v, want %v", tc.nodes, tc.sums, got, tc.want)
		}
	}
}

// openState opens the state of a machine whose node is stopped.
func (m *machine) openState(t *testing.T) *pebble.DB {
	t.Helper()
	db, err := pebble.Open("/"+m.name+"/state/db", &pebble.Options{
		FS: m.state, FormatMajorVersion: pebble.FormatNewest, Logger: pebbleLogger{log: slog.New(slog.DiscardHandler)},
	})
	check(t, err)
	return db
}

// falsify changes a stored value, such that no checksum tells.
func (m *machine) falsify(t *testing.T, from, to string) {
	t.Helper()
	db := m.openState(t)
	it, err := db.NewIter(nil)
	check(t, err)
	changed := 0
	for it.First(); it.Valid(); it.Next() {
		if v := it.Value(); bytes.Contains(v, []byte(from)) {
			check(t, db.Set(bytes.Clone(it.Key()), bytes.ReplaceAll(v, []byte(from), []byte(to)), pebble.Sync))
			changed++
		}
	}
	check(t, errors.Join(it.Close(), db.Close()))
	if changed == 0 {
		t.Fatalf("%s does not hold %s", m.name, from)
	}
}

// corrupt returns the members that an alarm of a machine's node names.
func (m *machine) corrupt() (members []uint64) {
	for _, a := range m.node.cluster.Alarms() {
		if a.Alarm == pb.AlarmType_CORRUPT {
			members = append(members, a.MemberID)
		}
	}
	return members
}

func (m *machine) kv(t *testing.T) pb.KVClient {
	t.Helper()
	c, err := grpc.NewClient(m.node.Addrs()[0].String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return pb.NewKVClient(c)
}

// named waits until the alarms on all nodes that run name one machine and nothing else.
func (c *cluster) named(odd *machine) {
	c.t.Helper()
	want := []uint64{memberID([]string{"http://" + odd.peers}, "etcd-cluster")}
	for _, m := range c.machines {
		if m.node != nil {
			until(c.t, m.name+" to name "+odd.name, func() bool { return slices.Equal(m.corrupt(), want) })
		}
	}
}

// A value that was changed on one node's disk is found, the alarm names the node, and its
// data is not served (O09).
func TestCorruptReplicaIsNamed(t *testing.T) {
	for _, splits := range []string{"", "g,n,t"} {
		t.Run("splits="+splits, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, "--initial-splits", splits, "--corrupt-check-time=100ms")
			c.start(c.machines...)
			keys := []string{"a", "h", "o", "u"}
			for _, key := range keys {
				c.put(key, "before")
				c.put(key, "right-"+key)
			}
			odd := c.machines[1]
			c.stop(odd)
			odd.falsify(t, "right-o", "wrong-o")
			c.start(odd)
			c.named(odd)
			for _, m := range c.machines {
				kv := m.kv(t)
				for _, key := range keys {
					resp, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte(key)})
					switch {
					case m == odd:
						wantLoss(t, "a read on "+m.name, err)
					case err != nil || string(resp.Kvs[0].Value) != "right-"+key:
						t.Errorf("a read on %s: %v, %v", m.name, resp, err)
					}
					_, err = kv.Put(t.Context(), &pb.PutRequest{Key: []byte(key)})
					wantLoss(t, "a write on "+m.name, err)
				}
			}
			wantLoss(t, "a transaction", second(odd.kv(t).Txn(t.Context(), &pb.TxnRequest{})))
			chunks, err := odd.kv(t).RangeStream(t.Context(), &pb.RangeRequest{Key: []byte("a")})
			check(t, err)
			wantLoss(t, "a stream", second(chunks.Recv()))
			if err := (services{odd.node.router, odd.node}).WriteSnapshot(t.Context(), io.Discard); err == nil {
				t.Error("the node makes a backup of what is wrong")
			}

			// Without the node, and the alarm, the rest goes on.
			c.stop(odd)
			member := c.machines[0].corrupt()[0]
			_, err = c.machines[0].node.cluster.ClearAlarm(t.Context(), member, pb.AlarmType_CORRUPT)
			check(t, err)
			c.put("a", "again")
		})
	}
}

func second[T any](_ T, err error) error { return err }

func wantLoss(t *testing.T, what string, err error) {
	t.Helper()
	if s := status.Convert(err); s.Code() != codes.DataLoss || s.Message() != "etcdserver: corrupt cluster" {
		t.Errorf("%s: %v", what, err)
	}
}

// A node with changed data does not start where it is to compare first, and one with the
// right data names it.
func TestInitialCorruptCheck(t *testing.T) {
	c := newCluster(t, 3, "--initial-splits", "g,n,t")
	c.start(c.machines...)
	for _, key := range []string{"a", "h", "o", "u"} {
		c.put(key, "right-"+key)
	}
	odd, fine := c.machines[0], c.machines[1]
	c.stop(odd)
	odd.falsify(t, "right-h", "wrong-h")
	const gate = "--feature-gates=InitialCorruptCheck=true"
	if err := odd.launch(nil, gate); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "replace it") {
		t.Errorf("it starts: %v", err)
	}
	if got := fine.corrupt(); len(got) > 0 {
		t.Errorf("a node that did not start is named: %x", got)
	}
	c.start(odd)
	c.stop(fine)
	check(t, fine.launch(nil, gate))
	c.named(odd)
}

// Data is compared behind a compaction, also where nodes are at different points of it.
func TestCompactHashCheck(t *testing.T) {
	for _, splits := range []string{"", "g,n,t"} {
		t.Run("splits="+splits, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, "--initial-splits", splits, "--feature-gates=CompactHashCheck=true", "--compact-hash-check-time=50ms")
			c.start(c.machines...)
			for _, key := range []string{"a", "h", "o", "u"} {
				c.put(key, "before")
				c.put(key, "right-"+key)
			}
			odd := c.machines[2]
			compact := func() {
				t.Helper()
				n := c.leader("a")
				_, err := n.router.Compact(t.Context(), &pb.CompactionRequest{Revision: n.router.Revision()})
				check(t, err)
			}
			compact()
			c.stop(odd)
			odd.falsify(t, "right-u", "wrong-u")
			c.start(odd)
			for _, m := range c.machines {
				m.node.peers.verifier.check(t.Context())
			}
			c.named(odd)
			member := odd.corrupt()[0]
			for _, m := range c.machines[:2] {
				_, err := m.node.cluster.ClearAlarm(t.Context(), member, pb.AlarmType_CORRUPT)
				check(t, err)
			}
			c.put("a", "after")
			compact()
			c.named(odd)
		})
	}
}

// Nodes with equal data are never taken for different ones, whatever is written, deleted
// and compacted meanwhile.
func TestEqualReplicasAreNotNamed(t *testing.T) {
	for _, splits := range []string{"", "g,n,t"} {
		t.Run("splits="+splits, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, "--initial-splits", splits)
			c.start(c.machines...)
			ctx, cancel := context.WithTimeout(t.Context(), sizedChecks)
			defer cancel()
			done := make(chan struct{})
			go func() {
				defer close(done)
				n := c.machines[0].node
				for i := 0; ctx.Err() == nil; i++ {
					key := []byte{"ahou"[i%4], byte(i / 4 % 8)}
					if i%7 == 0 {
						_, _ = n.router.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: key})
					}
					resp, err := n.router.Put(ctx, &pb.PutRequest{Key: key, Value: bytes.Repeat([]byte{byte(i)}, i%200)})
					if err == nil && i%20 == 0 {
						_, _ = n.router.Compact(ctx, &pb.CompactionRequest{Revision: resp.Header.Revision - 5})
					}
				}
			}()
			compared := 0
			for ctx.Err() == nil {
				for _, m := range c.machines {
					for id := range m.node.shards {
						sums, at, err := m.node.peers.verifier.compare(t.Context(), id)
						if err != nil {
							t.Errorf("compare shard %d: %v", id, err)
						}
						if odd := judge(3, sums); odd != nil {
							t.Fatalf("shard %d at %+v: %x, %v", id, at, odd, sums)
						}
						if len(sums) == 3 {
							compared++
						}
					}
				}
			}
			<-done
			if compared < 10 {
				t.Errorf("%d comparisons of all nodes", compared)
			}
		})
	}
}

const sizedChecks = 2 * time.Second

// A byte that flipped on the disk keeps the node from starting, in a line that says what
// to do, and the others go on.
func TestFlippedByteIsRefused(t *testing.T) {
	c := newCluster(t, 3, "--initial-splits", "g")
	c.start(c.machines...)
	c.put("a", strings.Repeat("value", 1000))
	odd := c.machines[0]
	c.stop(odd)
	db := odd.openState(t)
	check(t, errors.Join(db.Flush(), db.Close()))
	names, err := odd.state.List("/n0/state/db")
	check(t, err)
	flipped := 0
	for _, name := range names {
		if filepath.Ext(name) == ".sst" {
			odd.flip(t, "/n0/state/db/"+name)
			flipped++
		}
	}
	if flipped == 0 {
		t.Fatalf("no table among %v", names)
	}
	if err := odd.launch(nil); !errors.Is(err, errDamaged) || !strings.Contains(err.Error(), damaged) {
		t.Errorf("it starts: %v", err)
	}
	c.put("a", "on")
}

// flip changes a byte in the middle of the first block of a file.
func (m *machine) flip(t *testing.T, path string) {
	t.Helper()
	f, err := m.state.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	check(t, err)
	b := make([]byte, 1)
	_, err = f.ReadAt(b, 20)
	check(t, err)
	b[0] ^= 1
	_, err = f.WriteAt(b, 20)
	check(t, errors.Join(err, f.Close()))
}
