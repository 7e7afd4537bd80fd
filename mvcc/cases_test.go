package mvcc

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// all is the request for every key.
func all() *pb.RangeRequest { return &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}} }

func keysOf(kvs []*mvccpb.KeyValue) string {
	var ks []string
	for _, kv := range kvs {
		ks = append(ks, fmt.Sprintf("%q", kv.Key))
	}
	return strings.Join(ks, " ")
}

// drain polls g until it has nothing and prints what it got, one line a batch.
func drain(t *testing.T, g *Group) string {
	t.Helper()
	var sb strings.Builder
	for {
		b, ok, err := g.Poll()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return sb.String()
		}
		fmt.Fprintf(&sb, "%d:", b.ID)
		if b.CompactRev != 0 {
			fmt.Fprintf(&sb, " compacted %d", b.CompactRev)
		}
		for _, ev := range b.Events {
			fmt.Fprintf(&sb, " %s %s@%d", ev.Type, ev.Kv.Key, ev.Kv.ModRevision)
			if ev.PrevKv != nil {
				fmt.Fprintf(&sb, " (was %s@%d)", ev.PrevKv.Value, ev.PrevKv.ModRevision)
			}
		}
		fmt.Fprintf(&sb, " header %d\n", b.Rev)
	}
}

func equal(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n%s\nwant:\n%s", what, got, want)
	}
}

func opPut(key, value string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte(value)}}}
}

func opDelete(key, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end)}}}
}

func opRange(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

func TestFreshStore(t *testing.T) {
	e := memEnv(t)
	v := e.s.View()
	defer v.Close()
	if v.Rev() != 1 || v.Compacted() != -1 || v.Len() != 0 || v.Size() != 0 {
		t.Errorf("rev %d, compacted %d, %d keys, %d bytes", v.Rev(), v.Compacted(), v.Len(), v.Size())
	}
	if rev := e.put("a", "1"); rev != 2 {
		t.Errorf("first put at %d", rev)
	}
	if err := e.compact(0); err != nil {
		t.Errorf("compact(0) on a fresh store: %v", err)
	}
	if err := e.compact(0); !errors.Is(err, ErrCompacted) {
		t.Errorf("compact(0) again: %v", err)
	}
}

// A delete exactly at the compaction revision is still history.
func TestW01DeleteAtCompaction(t *testing.T) {
	e := memEnv(t)
	e.put("k", "1")        // 2
	e.put("k", "2")        // 3
	rev := e.put("k", "3") // 4
	e.del("k", "")         // 5
	e.put("k", "4")        // 6
	if err := e.compact(rev + 1); err != nil {
		t.Fatal(err)
	}
	e.sweepAll()
	for i, prefix := range []bool{false, true} {
		g := e.s.NewGroup()
		o := WatchOptions{Key: []byte("k"), Start: rev + 1, PrevKV: true}
		if prefix {
			o.End = []byte("l")
		}
		g.Add(1, o)
		o.Start = rev
		g.Add(2, o)
		equal(t, fmt.Sprint("watch ", i), drain(t, g), "1: DELETE k@5 PUT k@6 header 6\n2: compacted 5 header 0\n")
		g.Close()
	}
}

// A watcher from now on begins behind what its owner names, and never in the past: it
// would need history.
func TestWatchAfterARevisionOfItsOwner(t *testing.T) {
	e := memEnv(t)
	e.put("k", "1")        // 2
	e.put("k", "2")        // 3
	now := e.put("k", "3") // 4
	g := e.s.NewGroup()
	defer g.Close()
	for id, after := range map[int64]int64{1: now - 1, 2: now + 2} {
		if rev := g.Add(id, WatchOptions{Key: []byte("k"), After: after}); rev != max(after, now) {
			t.Errorf("watch after %d is registered at %d", after, rev)
		}
	}
	e.put("k", "4") // 5
	e.put("k", "5") // 6
	e.put("k", "6") // 7
	equal(t, "watch", drain(t, g), "1: PUT k@5 header 5\n2: PUT k@7 header 7\n1: PUT k@6 header 6\n1: PUT k@7 header 7\n")
}

// A slow watcher overtaken by compaction must be told, and what is queued for it
// is bounded.
// Whoever waits for a revision is woken, whatever else the group has asked for since.
func TestAwaitSeveralRevisions(t *testing.T) {
	for _, other := range []int64{3, 8, 20} {
		e := memEnv(t)
		g := e.s.NewGroup()
		e.s.Resolve(5)
		if g.Await(10) {
			t.Error("10 is resolved after 5")
		}
		if met := g.Await(other); met != (other <= 5) {
			t.Errorf("%d is resolved after 5: %v", other, met)
		}
		for rev := int64(6); rev <= 10; rev++ {
			e.s.Resolve(rev)
			select {
			case <-g.Ready():
				if met := g.Await(10); met != (rev == 10) {
					t.Errorf("10 is resolved after %d: %v", rev, met)
				}
				continue
			default:
			}
			if rev == 10 {
				t.Errorf("asked for 10, then for %d, and not woken at 10", other)
			}
		}
		g.Close()
	}
}

func TestW03SlowWatchers(t *testing.T) {
	e := memEnv(t)
	g := e.s.NewGroup()
	defer g.Close()
	for id := range int64(40) {
		g.Add(id, WatchOptions{Key: []byte("p/"), End: []byte("p0"), PrevKV: true})
	}
	value := strings.Repeat("v", 2<<10)
	first := e.s.Rev() + 1
	for i := range 5000 {
		e.put(fmt.Sprint("p/", i%100), value)
	}
	for id, w := range g.watchers {
		if len(w.queue) > maxQueuedBatches || w.bytes > maxQueuedBytes {
			t.Fatalf("watcher %d has %d batches and %d bytes queued", id, len(w.queue), w.bytes)
		}
	}
	if err := e.compact(e.s.Rev()); err != nil {
		t.Fatal(err)
	}
	e.sweepAll()
	for i := range 1000 {
		e.put(fmt.Sprint("p/", i%100), value)
	}
	next := make([]int64, 40)
	ended := 0
	for {
		b, ok, err := g.Poll()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		if b.CompactRev != 0 {
			ended++
		}
		for _, ev := range b.Events {
			if next[b.ID] == 0 {
				next[b.ID] = first
			}
			if ev.Kv.ModRevision != next[b.ID] {
				t.Fatalf("watcher %d: %d instead of %d", b.ID, ev.Kv.ModRevision, next[b.ID])
			}
			next[b.ID]++
		}
	}
	if ended != 40 {
		t.Errorf("%d of 40 watchers were told", ended)
	}
	if _, ok := g.Progress(); ok {
		t.Error("progress despite ended watchers")
	}
	for id := range int64(39) {
		g.Remove(id)
	}
	if _, ok := g.Progress(); ok {
		t.Error("progress despite an ended watcher")
	}
	g.Remove(39)
	g.Add(1, WatchOptions{Key: []byte("p/1")})
	if rev, ok := g.Progress(); !ok || rev != e.s.Rev() {
		t.Errorf("progress %d, %v", rev, ok)
	}
}

func TestW05SilentProgress(t *testing.T) {
	e := memEnv(t)
	e.put("a", "1")
	g := e.s.NewGroup()
	defer g.Close()
	g.Add(1, WatchOptions{Key: []byte("silent")})
	if rev, ok := g.Progress(); !ok || rev != 2 {
		t.Errorf("progress %d, %v", rev, ok)
	}
	g.Add(2, WatchOptions{Key: []byte("silent"), Start: 2})
	if _, ok := g.Progress(); ok {
		t.Error("progress before history was read")
	}
	<-g.Ready()
	equal(t, "watch", drain(t, g), "")
	if rev, ok := g.Progress(); !ok || rev != 2 {
		t.Errorf("progress %d, %v", rev, ok)
	}
	g.Add(3, WatchOptions{Key: []byte("silent"), Start: 4})
	if _, ok := g.Progress(); ok {
		t.Error("progress before a watcher's start")
	}
	e.put("a", "2")
	e.put("a", "3")
	if rev, ok := g.Progress(); !ok || rev != 4 {
		t.Errorf("progress %d, %v", rev, ok)
	}
}

func TestW07Starts(t *testing.T) {
	e := memEnv(t)
	for _, v := range []string{"1", "2", "3"} {
		e.put("k", v)
	}
	g := e.s.NewGroup()
	defer g.Close()
	for id, start := range []int64{0, 1, 4, 5, 6, 7, -5} {
		if rev := g.Add(int64(id), WatchOptions{Key: []byte("k"), Start: start}); rev != 4 {
			t.Errorf("watcher %d created at %d", id, rev)
		}
	}
	e.put("k", "4") // 5
	e.put("k", "5") // 6
	lines := strings.Split(strings.TrimSpace(drain(t, g)), "\n")
	slices.Sort(lines)
	equal(t, "watch", strings.Join(lines, "\n"), strings.Join([]string{
		"0: PUT k@5 header 5",
		"0: PUT k@6 header 6",
		"1: PUT k@2 PUT k@3 PUT k@4 PUT k@5 PUT k@6 header 6",
		"2: PUT k@4 PUT k@5 PUT k@6 header 6",
		"3: PUT k@5 header 5",
		"3: PUT k@6 header 6",
		"4: PUT k@6 header 6",
		"6: PUT k@2 PUT k@3 PUT k@4 PUT k@5 PUT k@6 header 6",
	}, "\n"))
}

// prev_kv is there although its history is gone: it was captured when the event
// happened.
func TestW11PrevKVAfterCompaction(t *testing.T) {
	e := memEnv(t)
	long := strings.Repeat("1", 2*inlineValue)
	e.put("x", long)
	g := e.s.NewGroup()
	defer g.Close()
	g.Add(1, WatchOptions{Key: []byte("x"), PrevKV: true})
	g.Add(2, WatchOptions{Key: []byte("x")})
	e.put("x", "2")
	e.del("x", "")
	e.put("x", "3")
	if err := e.compact(e.s.Rev()); err != nil {
		t.Fatal(err)
	}
	e.sweepAll()
	equal(t, "watch", drain(t, g), "1: PUT x@3 (was "+long+"@2) header 3\n2: PUT x@3 header 3\n"+
		"1: DELETE x@4 (was 2@3) header 4\n2: DELETE x@4 header 4\n1: PUT x@5 header 5\n2: PUT x@5 header 5\n")
}

// What the owner of a watcher knows to be compacted is not told of, though the store
// has not heard of it.
func TestPrevKVBelowTheOwnersCompaction(t *testing.T) {
	e := memEnv(t)
	for _, value := range []string{"1", "2", "3"} {
		e.put("x", value)
	}
	g := e.s.NewGroup()
	defer g.Close()
	for id, end := range map[int64]string{1: "", 2: "y"} {
		g.Add(id, WatchOptions{Key: []byte("x"), End: []byte(end), Start: 3, Compacted: 3, PrevKV: true})
		equal(t, "watch", drain(t, g), fmt.Sprintf("%d: PUT x@3 PUT x@4 (was 2@3) header 4\n", id))
	}
}

// Catching up comes in batches of a thousand revisions with the store's revision
// in the header, and of bounded size.
func TestCatchUpBatches(t *testing.T) {
	e := memEnv(t)
	for i := range 2500 {
		e.put(fmt.Sprint("k/", i%7), "v")
		e.put("other", "v")
	}
	for _, o := range []WatchOptions{{Key: []byte("k/"), End: []byte("k0"), Start: 1}, {Key: []byte("other"), Start: 1}} {
		g := e.s.NewGroup()
		g.Add(1, o)
		var sizes []int
		last := int64(0)
		for {
			b, ok, err := g.Poll()
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			sizes = append(sizes, len(b.Events))
			if b.Rev != e.s.Rev() {
				t.Errorf("header %d, want %d", b.Rev, e.s.Rev())
			}
			for _, ev := range b.Events {
				if last != 0 && ev.Kv.ModRevision != last+2 {
					t.Fatalf("%d after %d", ev.Kv.ModRevision, last)
				}
				last = ev.Kv.ModRevision
			}
		}
		if !slices.Equal(sizes, []int{1000, 1000, 500}) {
			t.Errorf("batches of %v events", sizes)
		}
		g.Close()
	}

	g := e.s.NewGroup()
	defer g.Close()
	start := e.s.Rev() + 1
	for range 5 {
		e.put("big", strings.Repeat("x", maxCatchUpBytes/2))
	}
	g.Add(1, WatchOptions{Key: []byte("big"), Start: start})
	equal(t, "big events", drain(t, g), "1: PUT big@5002 PUT big@5003 header 5006\n1: PUT big@5004 PUT big@5005 header 5006\n1: PUT big@5006 header 5006\n")
}

func TestWatchOddRanges(t *testing.T) {
	e := memEnv(t)
	g := e.s.NewGroup()
	defer g.Close()
	g.Add(1, WatchOptions{Key: nil, End: []byte{0}})
	g.Add(2, WatchOptions{Key: []byte("b"), End: []byte("a")})
	g.Add(3, WatchOptions{Key: []byte("a"), End: []byte{0}})
	for _, k := range []string{"0", "a", "b"} {
		e.put(k, "v")
	}
	lines := strings.Split(strings.TrimSpace(drain(t, g)), "\n")
	slices.Sort(lines)
	equal(t, "watch", strings.Join(lines, "\n"),
		"1: PUT 0@2 header 2\n1: PUT a@3 header 3\n1: PUT b@4 header 4\n3: PUT a@3 header 3\n3: PUT b@4 header 4")
	g.Remove(2)
}

// A caught-up watcher survives compaction.
func TestW21CaughtUpWatcher(t *testing.T) {
	e := memEnv(t)
	g := e.s.NewGroup()
	defer g.Close()
	g.Add(1, WatchOptions{Key: []byte("k"), Start: 1})
	equal(t, "nothing yet", drain(t, g), "")
	for range 100 {
		e.put("other", "v")
	}
	if err := e.compact(e.s.Rev()); err != nil {
		t.Fatal(err)
	}
	e.sweepAll()
	e.put("k", "v")
	equal(t, "watch", drain(t, g), "1: PUT k@102 header 102\n")
}

// A delete of everything from a key on, then a put above it, in one transaction:
// the put is what remains, whatever is compacted and however often the store is
// opened.
func TestT03DeleteAndRecreate(t *testing.T) {
	e := newEnv(t, vfs.NewCrashableMem())
	e.put("b", "old")
	if _, err := e.txn(&pb.TxnRequest{Success: []*pb.RequestOp{opDelete("a", "\x00"), opPut("b", "new")}}); err != nil {
		t.Fatal(err)
	}
	want := func() {
		t.Helper()
		resp := e.mustGet(&pb.RangeRequest{Key: []byte("b")})
		if len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != "new" || resp.Kvs[0].CreateRevision != 3 || resp.Kvs[0].Version != 1 {
			t.Fatalf("b is %v", resp)
		}
	}
	want()
	if err := e.compact(3); err != nil {
		t.Fatal(err)
	}
	want()
	e.sweepAll()
	want()
	g := e.s.NewGroup()
	g.Add(1, WatchOptions{Key: []byte("b"), Start: 3, PrevKV: true})
	equal(t, "watch", drain(t, g), "1: DELETE b@3 PUT b@3 header 3\n")
	g.Close()
	e.close()
	e.open()
	defer func() { e.close() }()
	want()
}

func TestT05CompareMissing(t *testing.T) {
	e := memEnv(t)
	for _, k := range []string{"r/1", "r/2", "r/3"} {
		e.put(k, k)
	}
	value := func(r pb.Compare_CompareResult, key, end string) *pb.Compare {
		return &pb.Compare{Result: r, Target: pb.Compare_VALUE, Key: []byte(key), RangeEnd: []byte(end), TargetUnion: &pb.Compare_Value{Value: []byte("r/2")}}
	}
	number := func(r pb.Compare_CompareResult, target pb.Compare_CompareTarget, key, end string) *pb.Compare {
		return &pb.Compare{Result: r, Target: target, Key: []byte(key), RangeEnd: []byte(end)}
	}
	const eq, ne, lt, gt = pb.Compare_EQUAL, pb.Compare_NOT_EQUAL, pb.Compare_LESS, pb.Compare_GREATER
	tests := []struct {
		c    *pb.Compare
		want bool
	}{
		{value(eq, "m", ""), false},
		{value(ne, "m", ""), false},
		{value(lt, "m", ""), false},
		{value(gt, "m", ""), false},
		{value(eq, "m", "n"), false},
		{value(ne, "m", "n"), false},
		{number(eq, pb.Compare_VERSION, "m", ""), true},
		{number(ne, pb.Compare_VERSION, "m", ""), false},
		{number(eq, pb.Compare_CREATE, "m", ""), true},
		{number(eq, pb.Compare_MOD, "m", ""), true},
		{number(eq, pb.Compare_LEASE, "m", ""), true},
		{number(eq, pb.Compare_VERSION, "m", "n"), true},
		{number(eq, pb.Compare_VERSION, "n", "m"), true},
		{value(ne, "r/1", "r/2"), true},
		{value(ne, "r/", "r0"), false},
		{number(gt, pb.Compare_VERSION, "r/", "r0"), true},
		{number(eq, pb.Compare_LEASE, "r/", "\x00"), true},
	}
	for _, tt := range tests {
		resp, err := e.txn(&pb.TxnRequest{Compare: []*pb.Compare{tt.c}})
		if err != nil || resp.Succeeded != tt.want || resp.Header.Revision != 4 {
			t.Errorf("%v: %v, %v, want %v", tt.c, resp, err, tt.want)
		}
	}
	if resp, err := e.txn(&pb.TxnRequest{}); err != nil || !resp.Succeeded {
		t.Errorf("no compares: %v, %v", resp, err)
	}
}

func TestT07LimitMoreCount(t *testing.T) {
	e := memEnv(t)
	const n = 1842
	e.apply(func(w *Writer) {
		for i := range n {
			if _, err := w.Put(&pb.PutRequest{Key: fmt.Appendf(nil, "p/%05d", i), Value: []byte("v")}, Opts{}); err != nil {
				t.Fatal(err)
			}
		}
	})
	e.put("q", "v")
	for _, past := range []int64{0, n + 1} {
		for _, order := range []pb.RangeRequest_SortOrder{0, 1, 2} {
			for _, limit := range []int64{1, n - 1, n, n + 1, 0} {
				req := &pb.RangeRequest{Key: []byte("p/"), RangeEnd: []byte("p0"), Limit: limit, SortOrder: order, Revision: past}
				resp := e.mustGet(req)
				want := n
				if limit != 0 && limit < n {
					want = int(limit)
				}
				if resp.Count != n || len(resp.Kvs) != want || resp.More != (want < n) {
					t.Errorf("%v: %d of %d, more %v", req, len(resp.Kvs), resp.Count, resp.More)
				}
				req.KeysOnly = true
				if resp = e.mustGet(req); len(resp.Kvs) != want || len(resp.Kvs[0].Value) != 0 {
					t.Errorf("%v: %d of %d", req, len(resp.Kvs), resp.Count)
				}
				req.CountOnly = true
				if resp = e.mustGet(req); len(resp.Kvs) != 0 || resp.Count != n || resp.More {
					t.Errorf("%v: %d of %d, more %v", req, len(resp.Kvs), resp.Count, resp.More)
				}
			}
		}
	}
}

func TestT09Sorting(t *testing.T) {
	e := memEnv(t)
	for _, k := range []string{"s/c", "s/b", "s/a", "s/b", "s/d/e"} {
		e.put(k, "value of "+k[2:])
	}
	const none, asc, desc = pb.RangeRequest_NONE, pb.RangeRequest_ASCEND, pb.RangeRequest_DESCEND
	tests := []struct {
		target pb.RangeRequest_SortTarget
		order  pb.RangeRequest_SortOrder
		limit  int64
		want   string
	}{
		{pb.RangeRequest_CREATE, none, 0, `"s/c" "s/b" "s/a" "s/d/e"`},
		{pb.RangeRequest_CREATE, asc, 1, `"s/c"`},
		{pb.RangeRequest_CREATE, desc, 1, `"s/d/e"`},
		{pb.RangeRequest_CREATE, asc, 3, `"s/c" "s/b" "s/a"`},
		{pb.RangeRequest_MOD, none, 0, `"s/c" "s/a" "s/b" "s/d/e"`},
		{pb.RangeRequest_MOD, asc, 1, `"s/c"`},
		{pb.RangeRequest_MOD, desc, 2, `"s/d/e" "s/b"`},
		// Without an order the limit cuts in key order, then the rest is sorted.
		{pb.RangeRequest_MOD, none, 1, `"s/a"`},
		{pb.RangeRequest_CREATE, none, 1, `"s/b"`},
		{pb.RangeRequest_VERSION, asc, 0, `"s/a" "s/c" "s/d/e" "s/b"`},
		{pb.RangeRequest_VERSION, desc, 1, `"s/b"`},
		{pb.RangeRequest_VALUE, desc, 0, `"s/d/e" "s/c" "s/b" "s/a"`},
		{pb.RangeRequest_KEY, desc, 2, `"s/d/e" "s/c"`},
	}
	// The second time there is an index of creations.
	for _, indexed := range []bool{false, true} {
		if e.s.creations.whole != indexed {
			t.Errorf("an index: %v, want %v", !indexed, indexed)
		}
		for _, tt := range tests {
			for _, past := range []int64{0, 6} {
				resp := e.mustGet(&pb.RangeRequest{Key: []byte("s/"), RangeEnd: []byte("s0"), SortTarget: tt.target, SortOrder: tt.order, Limit: tt.limit, Revision: past})
				equal(t, fmt.Sprint(tt), keysOf(resp.Kvs), tt.want)
			}
		}
		e.put("other", "")
	}
}

func TestT11ZeroBytes(t *testing.T) {
	e := memEnv(t)
	for _, k := range []string{"a", "a\x00", "a\x00b", "a/", "\x00", "b"} {
		e.put(k, "v")
	}
	for _, tt := range []struct{ key, end, want string }{
		{"\x00", "\x00", `"\x00" "a" "a\x00" "a\x00b" "a/" "b"`},
		{"a", "\x00", `"a" "a\x00" "a\x00b" "a/" "b"`},
		{"b", "a", ""},
		{"a", "b", `"a" "a\x00" "a\x00b" "a/"`},
		{"a", "", `"a"`},
	} {
		for _, past := range []int64{0, 7} {
			resp := e.mustGet(&pb.RangeRequest{Key: []byte(tt.key), RangeEnd: []byte(tt.end), Revision: past})
			equal(t, fmt.Sprintf("range %q %q", tt.key, tt.end), keysOf(resp.Kvs), tt.want)
		}
	}
}

func TestT15ABA(t *testing.T) {
	e := memEnv(t)
	mod := func(rev int64) *pb.Compare {
		return &pb.Compare{Target: pb.Compare_MOD, Key: []byte("k"), TargetUnion: &pb.Compare_ModRevision{ModRevision: rev}}
	}
	e.put("k", "theirs")
	e.del("k", "")
	if resp, err := e.txn(&pb.TxnRequest{Compare: []*pb.Compare{mod(0)}, Success: []*pb.RequestOp{opPut("k", "mine")}}); err != nil || !resp.Succeeded {
		t.Errorf("mod = 0 after a delete: %v, %v", resp, err)
	}
	e.del("k", "")
	if resp, err := e.txn(&pb.TxnRequest{Compare: []*pb.Compare{mod(4)}}); err != nil || resp.Succeeded {
		t.Errorf("mod = 4 after a delete: %v, %v", resp, err)
	}
}

func TestT17Compactions(t *testing.T) {
	e := memEnv(t)
	for range 9 {
		e.put("k", "v")
	}
	for _, tt := range []struct {
		rev  int64
		want error
	}{{-1, ErrCompacted}, {5, nil}, {5, ErrCompacted}, {3, ErrCompacted}, {1000, ErrFutureRev}, {10, nil}, {10, ErrCompacted}} {
		if err := e.compact(tt.rev); !errors.Is(err, tt.want) || Rejected(err) != (tt.want != nil) {
			t.Errorf("compact %d: %v, want %v", tt.rev, err, tt.want)
		}
	}
	if _, err := e.get(&pb.RangeRequest{Key: []byte("k"), Revision: 9}); !errors.Is(err, ErrCompacted) {
		t.Errorf("range below the compaction: %v", err)
	}
	if _, err := e.get(&pb.RangeRequest{Key: []byte("k"), Revision: 10}); err != nil {
		t.Errorf("range at the compaction: %v", err)
	}
}

// Revisions never go back, although nothing of the last one remains stored.
func TestO07RevisionsStay(t *testing.T) {
	fs := vfs.NewCrashableMem()
	e := newEnv(t, fs)
	e.put("a", "1")
	e.del("a", "")
	if err := e.compact(3); err != nil {
		t.Fatal(err)
	}
	e.sweepAll()
	if err := e.db.LogData(nil, pebble.Sync); err != nil {
		t.Fatal(err)
	}
	clone := fs.CrashClone(vfs.CrashCloneCfg{})
	e.close()
	e = newEnv(t, clone)
	defer e.close()
	if resp := e.mustGet(&pb.RangeRequest{Key: []byte("a")}); resp.Header.Revision != 3 || resp.Count != 0 {
		t.Errorf("after a crash: %v", resp)
	}
	if rev := e.put("a", "2"); rev != 4 {
		t.Errorf("next put at %d", rev)
	}
	if err := e.compact(3); !errors.Is(err, ErrCompacted) {
		t.Errorf("compact again: %v", err)
	}
}

// Inside a transaction a negative revision is not the newest one.
func TestTxnNegativeRevision(t *testing.T) {
	e := memEnv(t)
	e.put("k", "v")
	txn := func(rev int64) error {
		_, err := e.txn(&pb.TxnRequest{Success: []*pb.RequestOp{opPut("k", "w"), opRange(&pb.RangeRequest{Key: []byte("k"), Revision: rev})}})
		return err
	}
	if err := txn(-1); err != nil {
		t.Errorf("revision -1 before any compaction: %v", err)
	}
	if err := txn(-2); !errors.Is(err, ErrCompacted) {
		t.Errorf("revision -2 before any compaction: %v", err)
	}
	if err := e.compact(0); err != nil {
		t.Fatal(err)
	}
	if err := txn(-1); !errors.Is(err, ErrCompacted) {
		t.Errorf("revision -1 after a compaction: %v", err)
	}
	if err := txn(e.s.Rev() + 1); !errors.Is(err, ErrFutureRev) {
		t.Errorf("the transaction's own revision: %v", err)
	}
	if resp := e.mustGet(&pb.RangeRequest{Key: []byte("k"), Revision: -7}); len(resp.Kvs) != 1 || resp.Header.Revision != 3 {
		t.Errorf("revision -7 outside: %v", resp)
	}
}

// Headers inside a transaction change with its first write.
func TestTxnHeaders(t *testing.T) {
	e := memEnv(t)
	e.put("a", "v")
	get := opRange(&pb.RangeRequest{Key: []byte("a")})
	old := opRange(&pb.RangeRequest{Key: []byte("a"), Revision: 2})
	resp, err := e.txn(&pb.TxnRequest{Success: []*pb.RequestOp{get, opDelete("zz", ""), opPut("a", "w"), get, old, opDelete("zz", "")}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range resp.Responses {
		switch r := r.Response.(type) {
		case *pb.ResponseOp_ResponseRange:
			got = append(got, fmt.Sprintf("range %s@%d", r.ResponseRange.Kvs[0].Value, r.ResponseRange.Header.Revision))
		case *pb.ResponseOp_ResponsePut:
			got = append(got, fmt.Sprintf("put@%d", r.ResponsePut.Header.Revision))
		case *pb.ResponseOp_ResponseDeleteRange:
			got = append(got, fmt.Sprintf("delete@%d", r.ResponseDeleteRange.Header.Revision))
		}
	}
	equal(t, "answers", strings.Join(got, ", "), "range v@2, delete@2, put@3, range w@3, range v@3, delete@3")
	if resp.Header.Revision != 3 {
		t.Errorf("header %d", resp.Header.Revision)
	}
}

// A stream has as many chunks as its bytes need: more than numbers have bits, whose sizes grow.
func TestStreamOfManyChunks(t *testing.T) {
	e := memEnv(t)
	const n = 200
	for i := range n {
		e.put(fmt.Sprintf("s/%03d", i), "v")
	}
	for _, rev := range []int64{0, e.s.Rev() - 1} {
		v := e.s.View()
		chunks, kvs := 0, 0
		req := all()
		req.Revision = rev
		err := v.RangeChunks(background, req, 1, func(r *pb.RangeResponse) error {
			chunks++
			kvs += len(r.Kvs)
			return nil
		})
		v.Close()
		if want := n - min(1, int(rev)); err != nil || chunks != want || kvs != want {
			t.Errorf("at %d: %d keys in %d chunks, %v", rev, kvs, chunks, err)
		}
	}
}

// A stream shows the state at its beginning; a compaction above that ends it.
func TestStream(t *testing.T) {
	e := memEnv(t)
	for i := range 25 {
		e.put(fmt.Sprintf("s/%02d", i), "v")
	}
	req := &pb.RangeRequest{Key: []byte("s/"), RangeEnd: []byte("s0")}
	var sizes []int
	v := e.s.View()
	err := v.RangeStream(background, req, 1<<20, func(r *pb.RangeResponse) error {
		sizes = append(sizes, len(r.Kvs))
		e.put("s/00", "changed")
		e.put("s/99", "new")
		if err := e.compact(26); err != nil && !errors.Is(err, ErrCompacted) {
			return err
		}
		e.sweepAll()
		if r.Header != nil && (r.Header.Revision != 26 || r.Count != 25 || r.More) {
			t.Errorf("last chunk: %v", r)
		}
		return nil
	})
	if err != nil || !slices.Equal(sizes, []int{10, 15}) {
		t.Errorf("chunks of %v, %v", sizes, err)
	}
	// RangeChunks holds what it reads.
	v = e.s.View()
	n := 0
	err = v.RangeChunks(background, all(), 1<<20, func(r *pb.RangeResponse) error {
		n += len(r.Kvs)
		e.put("s/00", strings.Repeat("x", 100))
		if err := e.compact(e.s.Rev()); err != nil {
			return err
		}
		if done, err := e.s.Sweep(1000); done || err != nil {
			t.Errorf("swept under an open view: %v, %v", done, err)
		}
		return nil
	})
	v.Close()
	if err != nil || n != 26 {
		t.Errorf("%d keys, %v", n, err)
	}
	for _, past := range []int64{0, e.s.Rev()} {
		chunks := 0
		req.Revision = past
		err = e.s.View().RangeStream(background, req, 1<<20, func(*pb.RangeResponse) error {
			chunks++
			e.put("s/00", "changed again")
			if err := e.compact(e.s.Rev()); err != nil {
				return err
			}
			e.sweepAll()
			return nil
		})
		if !errors.Is(err, ErrCompacted) || chunks > 1 {
			t.Errorf("stream over a compaction: %d chunks, %v", chunks, err)
		}
	}
	broken := errors.New("broken")
	if err := e.s.View().RangeStream(background, all(), 1<<20, func(*pb.RangeResponse) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("emit failed: %v", err)
	}
	if pins := e.s.state.Load().epoch.pins.Load(); pins != 0 {
		t.Errorf("%d pins left", pins)
	}
}

func TestNumbers(t *testing.T) {
	e := memEnv(t)
	e.apply(func(w *Writer) {
		if resp, err := w.Put(&pb.PutRequest{Key: []byte("a")}, Opts{Number: 10, Want: true}); err != nil || resp.Header.Revision != 10 {
			t.Errorf("put: %v, %v", resp, err)
		}
		if resp, err := w.DeleteRange(&pb.DeleteRangeRequest{Key: []byte("zz")}, Opts{Number: 20, Want: true}); err != nil || resp.Header.Revision != 20 {
			t.Errorf("delete of nothing: %v, %v", resp, err)
		}
		if rev, n, err := w.DeleteKeys([][]byte{[]byte("zz"), []byte("a"), []byte("a")}, Opts{Number: 30}); rev != 30 || n != 1 || err != nil {
			t.Errorf("delete keys: %d, %d, %v", rev, n, err)
		}
	})
	if e.s.Rev() != 30 {
		t.Errorf("revision %d", e.s.Rev())
	}
	for rev, want := range map[int64]int{9: 0, 10: 1, 29: 1, 30: 0} {
		req := all()
		req.Revision = rev
		if resp := e.mustGet(req); len(resp.Kvs) != want {
			t.Errorf("at %d: %v", rev, resp)
		}
	}
}

// The hash at a revision is the same before and after compactions up to there, swept or not.
func TestHashIsOfOneRevision(t *testing.T) {
	e := memEnv(t)
	for round := range 3 {
		for _, key := range []string{"a", "b", "a", "c"} {
			e.put(key, fmt.Sprint(round))
		}
		e.del("a", "")
		e.del("b", "c")
	}
	hash := func(rev int64) (sum, history uint32) {
		t.Helper()
		v := e.s.View()
		defer v.Close()
		sum, _, at, err := v.HashKV(rev)
		if err != nil || at != rev {
			t.Fatalf("HashKV(%d): %d, %v", rev, at, err)
		}
		history, _, _, err = v.HashRetained(rev)
		if err != nil {
			t.Fatal(err)
		}
		return sum, history
	}
	before, histories := make(map[int64]uint32), make(map[uint32]bool)
	for rev := int64(2); rev <= e.s.Rev(); rev++ {
		var history uint32
		before[rev], history = hash(rev)
		histories[history] = true
	}
	if len(histories) != len(before) {
		t.Errorf("%d histories have %d hashes", len(before), len(histories))
	}
	for compacted := int64(2); compacted <= e.s.Rev(); compacted++ {
		if err := e.compact(compacted); err != nil {
			t.Fatal(err)
		}
		for _, sweep := range []func(){func() {}, e.sweepAll} {
			sweep()
			for rev := compacted; rev <= e.s.Rev(); rev++ {
				if sum, _ := hash(rev); sum != before[rev] {
					t.Errorf("at %d, compacted at %d: %x, before %x", rev, compacted, sum, before[rev])
				}
			}
		}
	}
}

func TestHashes(t *testing.T) {
	a, b := memEnv(t), memEnv(t)
	for _, e := range []*env{a, b} {
		e.put("k", "1")
		e.put("k", "2")
		e.del("k", "")
		e.put("l", "3")
		if err := e.compact(4); err != nil {
			t.Fatal(err)
		}
	}
	a.sweepAll()
	va, vb := a.s.View(), b.s.View()
	defer va.Close()
	defer vb.Close()
	sumA, compact, rev, err := va.HashKV(0)
	if err != nil || compact != 4 || rev != 5 {
		t.Errorf("HashKV: %d, %d, %v", compact, rev, err)
	}
	if sumB, _, _, err := vb.HashKV(5); err != nil || sumB != sumA {
		t.Errorf("swept %x, not swept %x, %v", sumA, sumB, err)
	}
	if sum, _, _, err := va.HashKV(4); err != nil || sum == sumA {
		t.Errorf("HashKV(4): %x, %v", sum, err)
	}
	if _, _, _, err := va.HashKV(3); !errors.Is(err, ErrCompacted) {
		t.Errorf("HashKV(3): %v", err)
	}
	if sum, compact, rev, err := va.HashKV(-2); err != nil || sum != 0 || compact != 4 || rev != -2 {
		t.Errorf("HashKV(-2): %x, %d, %d, %v", sum, compact, rev, err)
	}
	if _, _, _, err := va.HashKV(6); !errors.Is(err, ErrFutureRev) {
		t.Errorf("HashKV(6): %v", err)
	}
	hashA, errA := va.Hash()
	hashB, errB := vb.Hash()
	if hashA != hashB || errA != nil || errB != nil {
		t.Errorf("Hash: %x, %x, %v, %v", hashA, hashB, errA, errB)
	}
}

// Damage in what is stored is found and named when the store is opened.
func TestCorruptData(t *testing.T) {
	l := layout{prefix: testPrefix}
	for name, set := range map[string][2][]byte{
		"meta":     {l.meta(metaApplied), []byte("short")},
		"rev":      {l.meta(metaApplied), applied{rev: 1, compact: 5}.encode()},
		"swept":    {l.meta(metaSwept), swept{rev: 9}.encode()},
		"key":      {append(l.start(spaceVersions), "no terminator"...), {kindTombstone}},
		"record":   {l.appendVersion(nil, []byte("k"), 2, 0), {kindPut, 0xff}},
		"revision": {l.appendVersion(nil, []byte("k"), 99, 0), {kindTombstone}},
	} {
		e := newEnv(t, vfs.NewMem())
		e.put("k", "v")
		if err := e.db.Set(set[0], set[1], pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(e.db, testPrefix); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		e.close()
	}
}

func TestRecordOfALaterVersion(t *testing.T) {
	e := newEnv(t, vfs.NewMem())
	defer e.close()
	e.put("k", "v")
	if err := e.db.Set(layout{prefix: testPrefix}.appendVersion(nil, []byte("k"), 2, 0), []byte{9, 1, 1, 1}, pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(e.db, testPrefix); !errors.Is(err, keys.ErrNewer) {
		t.Error(err)
	}
}
