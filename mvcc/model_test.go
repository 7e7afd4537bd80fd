package mvcc

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"pgregory.net/rapid"

	"github.com/latchkey-db/latchkey/internal/keys"
)

var (
	someKeys = []string{
		"\x00", "\x00\x01", "a", "a\x00", "a\x00b", "a/", "a/1", "a/2", "a/3", "a/b/1", "a/b/2", "a/b/c/1", "a0", "b", "b/1", "\xff", "\xff\xff",
	}
	someEnds   = append([]string{"\x00", "\x00", "a0", "b", "c"}, someKeys...)
	someValues = []string{"", "v", "w", string(bytes.Repeat([]byte("long "), 40))}
)

func drawKey(t *rapid.T) []byte { return []byte(rapid.SampledFrom(someKeys).Draw(t, "key")) }

// drawRange draws key and range_end, prefixes more often than not.
func drawRange(t *rapid.T) (key, end []byte) {
	if rapid.Bool().Draw(t, "prefix") {
		p := rapid.SampledFrom([]string{"a/", "a/b/", "b/", "a"}).Draw(t, "of")
		e := []byte(p)
		e[len(e)-1]++
		return []byte(p), e
	}
	if key = drawKey(t); rapid.IntRange(0, 3).Draw(t, "range") > 0 {
		end = []byte(rapid.SampledFrom(someEnds).Draw(t, "end"))
	}
	return key, end // no end at all rather than one of no bytes, as off the wire
}

// drawRev draws a revision around the ones that exist, or none.
func drawRev(t *rapid.T, m *model, label string) int64 {
	return rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(-2, m.rev+2), rapid.Int64Range(max(m.compact-1, 0), m.rev)).Draw(t, label)
}

func drawRangeReq(t *rapid.T, m *model) *pb.RangeRequest {
	r := &pb.RangeRequest{
		Revision:   drawRev(t, m, "revision"),
		Limit:      rapid.SampledFrom([]int64{0, 0, 1, 1, 2, 3, 20, -1, 1 << 40}).Draw(t, "limit"),
		SortOrder:  rapid.SampledFrom([]pb.RangeRequest_SortOrder{0, 0, 1, 2}).Draw(t, "order"),
		SortTarget: rapid.SampledFrom([]pb.RangeRequest_SortTarget{0, 0, 1, 2, 2, 3, 4}).Draw(t, "target"),
		KeysOnly:   rapid.Bool().Draw(t, "keys only"), CountOnly: rapid.IntRange(0, 9).Draw(t, "count only") == 0,
	}
	r.Key, r.RangeEnd = drawRange(t)
	for _, f := range []*int64{&r.MinModRevision, &r.MaxModRevision, &r.MinCreateRevision, &r.MaxCreateRevision} {
		if rapid.IntRange(0, 4).Draw(t, "filter") == 0 {
			*f = drawRev(t, m, "bound")
		}
	}
	return r
}

func drawPut(t *rapid.T) *pb.PutRequest {
	r := &pb.PutRequest{Key: drawKey(t), PrevKv: rapid.Bool().Draw(t, "prev")}
	if rapid.IntRange(0, 4).Draw(t, "ignore value") == 0 {
		r.IgnoreValue = true
	} else {
		r.Value = []byte(rapid.SampledFrom(someValues).Draw(t, "value"))
	}
	if rapid.IntRange(0, 4).Draw(t, "ignore lease") == 0 {
		r.IgnoreLease = true
	} else {
		r.Lease = rapid.SampledFrom([]int64{0, 0, 0, 1, 1, 2, 3, 9}).Draw(t, "lease")
	}
	return r
}

func drawDelete(t *rapid.T) *pb.DeleteRangeRequest {
	r := &pb.DeleteRangeRequest{PrevKv: rapid.Bool().Draw(t, "prev")}
	r.Key, r.RangeEnd = drawRange(t)
	return r
}

func drawCompare(t *rapid.T, m *model) *pb.Compare {
	c := &pb.Compare{
		Result: pb.Compare_CompareResult(rapid.IntRange(0, 3).Draw(t, "result")),
		Target: pb.Compare_CompareTarget(rapid.IntRange(0, 4).Draw(t, "target")),
	}
	if c.Key = drawKey(t); rapid.IntRange(0, 2).Draw(t, "range") == 0 {
		c.Key, c.RangeEnd = drawRange(t)
	}
	n := drawRev(t, m, "operand")
	switch c.Target {
	case pb.Compare_VERSION:
		c.TargetUnion = &pb.Compare_Version{Version: n % 4}
	case pb.Compare_CREATE:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: n}
	case pb.Compare_MOD:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: n}
	case pb.Compare_LEASE:
		c.TargetUnion = &pb.Compare_Lease{Lease: n % 4}
	case pb.Compare_VALUE:
		c.TargetUnion = &pb.Compare_Value{Value: []byte(rapid.SampledFrom(someValues).Draw(t, "value"))}
	}
	return c
}

func drawOps(t *rapid.T, m *model, depth int) []*pb.RequestOp {
	ops := make([]*pb.RequestOp, rapid.IntRange(0, 4).Draw(t, "ops"))
	for i := range ops {
		switch rapid.IntRange(0, 9+depth).Draw(t, "op") {
		case 0, 1, 2:
			ops[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: drawRangeReq(t, m)}}
		case 3:
			ops[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("a/"), RangeEnd: []byte("a0"), Revision: m.rev}}}
		case 4, 5, 6:
			ops[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: drawPut(t)}}
		case 7, 8:
			ops[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: drawDelete(t)}}
		case 9:
			ops[i] = &pb.RequestOp{}
			if rapid.IntRange(0, 9).Draw(t, "empty") > 0 {
				ops[i].Request = &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: drawKey(t)}}
			}
		default:
			ops[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: drawTxn(t, m, depth-1)}}
		}
	}
	return ops
}

func drawTxn(t *rapid.T, m *model, depth int) *pb.TxnRequest {
	r := &pb.TxnRequest{Compare: make([]*pb.Compare, rapid.IntRange(0, 2).Draw(t, "compares"))}
	for i := range r.Compare {
		r.Compare[i] = drawCompare(t, m)
	}
	r.Success, r.Failure = drawOps(t, m, depth), drawOps(t, m, depth)
	return r
}

// machine runs the same random commands on a Store and on the model.
type machine struct {
	*env
	m *model
	// w is the writer of the open batch, nil if there is none.
	w *Writer
	// published is the part of the model that views show.
	published modelState
	pubComp   int64
	// held are views that stay open while things go on.
	held []heldView
	// transactions are those that hold keys, and visible those that published states know
	// of. Of numbers up to promised no more may be
	// given to others. resolvedTo is what the store has been told of that.
	transactions, visible []*heldKeys
	promised, resolvedTo  int64
	// inserted, if there is one, hears of n changes that come in at i of the model's log.
	inserted func(t *rapid.T, i, n int)
}

type heldView struct {
	v   *View
	kvs map[string]*mvccpb.KeyValue
}

func (x *machine) writer() *Writer {
	if x.w == nil {
		x.w = x.s.NewWriter(x.db.NewBatch(), &x.leases)
	}
	return x.w
}

func (x *machine) opts(t *rapid.T) Opts {
	o := Opts{Want: rapid.IntRange(0, 5).Draw(t, "want") > 0}
	if x.promised > x.m.rev || rapid.IntRange(0, 5).Draw(t, "ordered") == 0 {
		o.Number = max(x.m.rev, x.promised) + rapid.Int64Range(1, 3).Draw(t, "gap")
	}
	return o
}

// settle compares the errors of a command and what it has left behind.
func (x *machine) settle(t *rapid.T, c *modelCmd, got, want error) {
	if !errors.Is(got, want) || want == nil && got != nil {
		t.Fatalf("error %v, want %v", got, want)
	}
	c.end()
	if x.w.Rev() != x.m.rev || x.w.Compacted() != x.m.compact {
		t.Fatalf("revision %d, compacted %d, want %d and %d", x.w.Rev(), x.w.Compacted(), x.m.rev, x.m.compact)
	}
	sameLeases(t, x.leases.attached, x.m.attached())
}

func (x *machine) put(t *rapid.T) {
	req, o, w := drawPut(t), x.opts(t), x.writer()
	if x.meets(t, nil, []keys.Span{keys.Point(req.Key)}) {
		return
	}
	c := x.m.begin(&x.leases, o.Number)
	got, err := w.Put(req, o)
	want := c.checkPut(req)
	if want == nil {
		if a := c.put(req); o.Want {
			same(t, "put", got, a)
		}
	}
	x.settle(t, c, err, want)
}

func (x *machine) delete(t *rapid.T) {
	req, o, w := drawDelete(t), x.opts(t), x.writer()
	if x.meets(t, nil, []keys.Span{keys.FromRange(req.Key, req.RangeEnd)}) {
		return
	}
	c := x.m.begin(&x.leases, o.Number)
	got, err := w.DeleteRange(req, o)
	a := c.del(req)
	a.Header.Revision = c.reached()
	if o.Want {
		same(t, "delete", got, a)
	}
	x.settle(t, c, err, nil)
}

func (x *machine) deleteKeys(t *rapid.T) {
	ks := rapid.SliceOfN(rapid.SampledFrom(someKeys), 0, 5).Draw(t, "keys")
	o, w := x.opts(t), x.writer()
	var spans []keys.Span
	for _, k := range ks {
		spans = append(spans, keys.Point([]byte(k)))
	}
	if x.meets(t, nil, spans) {
		return
	}
	c := x.m.begin(&x.leases, o.Number)
	var victims [][]byte
	before := len(c.now)
	present := make(map[string]*mvccpb.KeyValue)
	for _, k := range ks {
		victims = append(victims, []byte(k))
		if kv := c.now[k]; kv != nil {
			present[k] = kv
		}
	}
	for _, kv := range sorted(present, nil, []byte{0}) {
		c.del(&pb.DeleteRangeRequest{Key: kv.Key})
	}
	rev, n, err := w.DeleteKeys(victims, o)
	if rev != c.reached() || n != before-len(c.now) {
		t.Fatalf("deleted %d at %d, want %d at %d", n, rev, before-len(c.now), c.reached())
	}
	x.settle(t, c, err, nil)
}

func (x *machine) transact(t *rapid.T) {
	req, o, w := drawTxn(t, x.m, 2), x.opts(t), x.writer()
	var reads, writes []keys.Span
	EachSpan(req, func(s keys.Span, write bool) bool {
		if write {
			writes = append(writes, s)
		} else {
			reads = append(reads, s)
		}
		return true
	})
	if x.meets(t, reads, writes) {
		return
	}
	c := x.m.begin(&x.leases, o.Number)
	got, err := w.Txn(req, o)
	want := c.checkTxn(req)
	if want == nil {
		a := c.txn(req)
		a.Header.Revision = c.reached()
		if o.Want {
			same(t, "transaction", got, a)
		}
	}
	x.settle(t, c, err, want)
}

func (x *machine) compactSome(t *rapid.T) {
	rev, w := drawRev(t, x.m, "revision"), x.writer()
	if rapid.Bool().Draw(t, "head") {
		rev = x.m.rev
	}
	c := x.m.begin(&x.leases, 0)
	got, want := w.Compact(rev), x.compactTo(rev)
	x.settle(t, c, got, want)
}

func (x *machine) publish(*rapid.T) {
	if x.w == nil {
		return
	}
	x.commit(x.w)
	x.w.batch.Close()
	x.w = nil
	for _, h := range x.transactions {
		if h.from == 0 {
			h.from = max(h.bound, x.published.rev, x.resolvedTo)
		}
	}
	x.visible = slices.Clone(x.transactions)
	x.published = modelState{rev: x.m.rev, kvs: x.m.at(x.m.rev)}
	x.pubComp = x.m.compact
}

// view runs fn with the newest view and with the model as the view should see
// it.
func (x *machine) view(fn func(v *View, m *model)) {
	v := x.s.View()
	defer v.Close()
	m := *x.m
	m.rev, m.compact = x.published.rev, x.pubComp
	fn(v, &m)
}

func (x *machine) rangeNow(t *rapid.T) {
	x.view(func(v *View, m *model) {
		req := drawRangeReq(t, m)
		got, err := v.Range(background, req)
		want, wantErr := m.rangeIn(req, m.rev, x.published.kvs)
		if !errors.Is(err, wantErr) {
			t.Fatalf("range: error %v, want %v", err, wantErr)
		}
		if err == nil {
			same(t, "range", got, want)
		}
	})
}

func (x *machine) stream(t *rapid.T) {
	x.view(func(v *View, m *model) {
		req := drawRangeReq(t, m)
		got, last := &pb.RangeResponse{}, false
		stream := v.RangeChunks
		if rapid.Bool().Draw(t, "loose") {
			stream = v.RangeStream
		}
		err := stream(background, req, rapid.SampledFrom([]int{1, 300, 1 << 20}).Draw(t, "chunk"), func(r *pb.RangeResponse) error {
			if last {
				t.Fatalf("a chunk after the last")
			}
			last = r.Header != nil
			r.Kvs, got = append(got.Kvs, r.Kvs...), r
			return nil
		})
		want, wantErr := m.rangeIn(req, m.rev, x.published.kvs)
		if !errors.Is(err, wantErr) {
			t.Fatalf("stream: error %v, want %v", err, wantErr)
		}
		if err == nil {
			same(t, "stream", got, want)
		}
	})
}

func (x *machine) readTxn(t *rapid.T) {
	x.view(func(v *View, m *model) {
		req := &pb.TxnRequest{Compare: []*pb.Compare{drawCompare(t, m)}}
		for range rapid.IntRange(0, 3).Draw(t, "ranges") {
			op := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: drawRangeReq(t, m)}}
			req.Success, req.Failure = append(req.Success, op), append([]*pb.RequestOp{op}, req.Failure...)
		}
		m.states = append(m.states[:len(m.states):len(m.states)], x.published)
		c := m.begin(&x.leases, 0)
		got, err := v.Txn(background, req)
		if want := c.checkTxn(req); !errors.Is(err, want) || want == nil && err != nil {
			t.Fatalf("read transaction: error %v, want %v", err, want)
		}
		if err == nil {
			want := c.txn(req)
			want.Header.Revision = m.rev
			same(t, "read transaction", got, want)
		}
	})
}

func (x *machine) hold(t *rapid.T) {
	x.held = append(x.held, heldView{v: x.s.View(), kvs: x.published.kvs})
}

// release checks that a view still shows what it did when it was opened, at all
// revisions that it had.
func (x *machine) release(t *rapid.T) {
	if len(x.held) == 0 {
		return
	}
	h := x.held[0]
	x.held = x.held[1:]
	defer h.v.Close()
	m := *x.m
	m.rev, m.compact = h.v.Rev(), h.v.Compacted()
	for rev := max(m.compact, 0); rev <= min(m.rev, h.v.ResolvedOf()); rev++ {
		req := &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Revision: rev}
		got, err := h.v.Range(background, req)
		if err != nil {
			t.Fatalf("held view of %d at %d: %v", m.rev, rev, err)
		}
		want, err := m.rangeIn(req, m.rev, h.kvs)
		if err != nil {
			t.Fatalf("model: %v", err)
		}
		same(t, "held view", got, want)
	}
}

// hash returns the hash of the state at rev, and that of the history up to it.
func (x *machine) hash(t *rapid.T, rev int64) (sums [2]uint32) {
	x.view(func(v *View, _ *model) {
		for i, hash := range []func(int64) (uint32, int64, int64, error){v.HashKV, v.HashRetained} {
			var err error
			if sums[i], _, _, err = hash(rev); err != nil {
				t.Fatalf("hash: %v", err)
			}
		}
	})
	return sums
}

func (x *machine) sweepSome(t *rapid.T) {
	rev := rapid.Int64Range(max(x.pubComp, 1), min(x.published.rev, x.s.ResolvedOf())).Draw(t, "hash revision")
	before := x.hash(t, rev)
	if _, err := x.s.Sweep(rapid.IntRange(1, 5).Draw(t, "limit")); err != nil {
		t.Fatalf("sweep: %v", err)
	}
	if after := x.hash(t, rev); after != before {
		t.Fatalf("sweeping changed the hash from %x to %x", before, after)
	}
}

// reopen closes and opens the store, or makes it read its content again.
func (x *machine) reopen(t *rapid.T) {
	x.publish(t)
	for len(x.held) > 0 {
		x.release(t)
	}
	rev := min(x.bound(), x.published.rev)
	before := x.hash(t, rev)
	if rapid.Bool().Draw(t, "reload") {
		v := x.s.View()
		x.s.BeginReload()
		if _, err := v.Range(background, &pb.RangeRequest{Key: []byte("a")}); !errors.Is(err, ErrReplaced) {
			t.Fatalf("view of a replaced store: %v", err)
		}
		v.Close()
		if err := x.s.Reload(); err != nil {
			t.Fatalf("reload: %v", err)
		}
	} else {
		x.close()
		x.open()
		// Nobody knows any more what was promised.
		for _, h := range x.transactions {
			h.from = h.bound
		}
		x.resolvedTo = 0
	}
	if after := x.hash(t, rev); after != before {
		t.Fatalf("reopening changed the hash from %x to %x", before, after)
	}
}

// check compares sizes and what is stored, once everything is swept.
func (x *machine) check(t *rapid.T) {
	x.publish(t)
	for len(x.held) > 0 {
		x.release(t)
	}
	x.sweepAll()
	retained, live := x.m.sizes()
	v := x.s.View()
	defer v.Close()
	if v.Size() != retained || v.LiveSize() != live || v.Len() != len(x.published.kvs) || x.s.Size() != retained {
		t.Fatalf("size %d, live %d, %d keys, want %d, %d and %d", v.Size(), v.LiveSize(), v.Len(), retained, live, len(x.published.kvs))
	}
	if !x.s.SweepDone(x.m.compact) {
		t.Fatalf("sweep of %d not done", x.m.compact)
	}
}

func TestModel(t *testing.T) {
	for i := range 10 {
		t.Run(fmt.Sprint(i), func(t *testing.T) { rapid.Check(t, checkMachine) })
	}
}

func checkMachine(t *rapid.T) {
	x := &machine{env: newEnv(t, vfs.NewMem()), m: newModel(), published: modelState{rev: 1}, pubComp: -1}
	defer func() {
		for _, h := range x.held {
			h.v.Close()
		}
		if x.w != nil {
			x.w.batch.Close()
		}
		x.close()
	}()
	t.Repeat(map[string]func(*rapid.T){
		"put": x.put, "put again": x.put, "delete": x.delete, "delete keys": x.deleteKeys, "txn": x.transact, "txn again": x.transact,
		"compact": x.compactSome, "publish": x.publish, "publish again": x.publish, "range": x.rangeNow, "range again": x.rangeNow,
		"stream": x.stream, "read txn": x.readTxn, "hold": x.hold, "release": x.release, "sweep": x.sweepSome, "reopen": x.reopen,
		"check": x.check,
	})
}
