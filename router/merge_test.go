package router

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/placement"
)

// anyLease knows every lease.
type anyLease struct{}

func (anyLease) Exists(int64) bool    { return true }
func (anyLease) Attach(int64, []byte) {}
func (anyLease) Detach(int64, []byte) {}

// twin is a cluster of three shards and one store that is told the same.
type twin struct {
	*testing.T
	*rand.Rand

	s     *testCluster
	order *tally
	db    *pebble.DB
	store *mvcc.Store
	// near has only keys of the first shard be drawn.
	near bool
}

func newTwin(t *testing.T, seed uint64) *twin {
	t.Helper()
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	store, err := mvcc.Open(db, []byte("one/"))
	if err != nil {
		t.Fatal(err)
	}
	three := placement.Map{
		{Start: []byte{}, Shard: 2}, {Start: keys.Position([]byte("c")), Shard: 3}, {Start: keys.Position([]byte("ee")), Shard: 4},
	}
	w := &twin{T: t, Rand: rand.New(rand.NewPCG(seed, 1)), s: newTestCluster(t, three, false), db: db, store: store}
	var ok bool
	if w.order, ok = w.s.order.(*tally); !ok {
		t.Fatalf("the order is %T", w.s.order)
	}
	w.order.compacted = -1
	return w
}

func (w *twin) close() {
	w.s.close(w.T)
	if err := w.db.Close(); err != nil {
		w.Error(err)
	}
}

// apply has the store do what the cluster has done.
func (w *twin) apply(fn func(*mvcc.Writer) error) {
	w.Helper()
	b := w.db.NewBatch()
	writer := w.store.NewWriter(b, anyLease{})
	if err := fn(writer); err != nil {
		w.Fatal(err)
	}
	if err := writer.Finish(); err != nil {
		w.Fatal(err)
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		w.Fatal(err)
	}
	writer.Publish()
}

func (w *twin) key() []byte {
	if w.near {
		return []byte{"ab"[w.IntN(2)], "abcdefg"[w.IntN(7)]}[:1+w.IntN(2)]
	}
	return []byte{"abcdefg"[w.IntN(7)], "abcdefg"[w.IntN(7)]}[:1+w.IntN(2)]
}

func (w *twin) change() {
	w.Helper()
	if w.IntN(4) == 0 {
		req := &pb.DeleteRangeRequest{Key: w.key()}
		resp, err := w.s.DeleteRange(w.Context(), req)
		if err != nil {
			w.Fatal(err)
		}
		if resp.Deleted == 0 {
			return // it took no number
		}
		w.apply(func(m *mvcc.Writer) error {
			_, err := m.DeleteRange(req, mvcc.Opts{Number: resp.Header.Revision})
			return err
		})
		return
	}
	req := &pb.PutRequest{Key: w.key(), Value: fmt.Append(nil, w.IntN(5)), Lease: max(0, w.Int64N(6)-2)}
	resp, err := w.s.Put(w.Context(), req)
	if err != nil {
		w.Fatal(err)
	}
	w.apply(func(m *mvcc.Writer) error {
		_, err := m.Put(req, mvcc.Opts{Number: resp.Header.Revision})
		return err
	})
}

func (w *twin) compact() {
	w.Helper()
	rev := w.Int64N(w.newest()) + 1
	if rev <= w.order.compacted {
		return
	}
	if _, err := w.s.Compact(w.Context(), &pb.CompactionRequest{Revision: rev, Physical: w.IntN(2) == 0}); err != nil {
		w.Fatal(err)
	}
	w.apply(func(m *mvcc.Writer) error { return m.Compact(rev) })
}

func (w *twin) newest() int64 {
	w.Helper()
	b, err := w.order.Newest(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return b.Newest
}

// revision returns that of a request, which may be one that is not there.
func (w *twin) revision() int64 {
	switch w.IntN(8) {
	case 0:
		return -w.Int64N(3)
	case 1, 2, 3:
		return w.newest() + 2 - w.Int64N(w.newest()+2)
	default:
		return 0
	}
}

func (w *twin) request() *pb.RangeRequest {
	req := &pb.RangeRequest{
		Key: w.key(), RangeEnd: [][]byte{nil, w.key(), {0}, {0}, []byte("zz")}[w.IntN(5)],
		Revision: w.revision(),
		Limit:    []int64{0, 0, 1, 2, 3, 5, 20, -1, math.MaxInt64}[w.IntN(9)],
		// One more than there are: clients send what they like.
		SortOrder: pb.RangeRequest_SortOrder(w.IntN(4)), SortTarget: pb.RangeRequest_SortTarget(w.IntN(6)),
		KeysOnly: w.IntN(4) == 0, CountOnly: w.IntN(6) == 0,
	}
	for _, bound := range []*int64{&req.MinModRevision, &req.MaxModRevision, &req.MinCreateRevision, &req.MaxCreateRevision} {
		if w.IntN(8) == 0 {
			*bound = w.Int64N(w.newest())
		}
	}
	return req
}

// same compares what the cluster and the store have answered.
func (w *twin) same(what any, got any, gotErr error, want any, wantErr error) {
	w.Helper()
	if diff := cmp.Diff(wantErr, gotErr, cmpopts.EquateErrors()); diff != "" {
		w.Fatalf("%v: error (-one store +several shards):\n%s", what, diff)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); gotErr == nil && diff != "" {
		w.Fatalf("%v (-one store +several shards):\n%s", what, diff)
	}
}

// whole returns the store's keys as of the newest revision.
func (w *twin) whole() *mvcc.View {
	w.Helper()
	v := w.store.View()
	if err := v.At(w.newest()); err != nil {
		w.Fatal(err)
	}
	return v
}

func (w *twin) compareRange() {
	w.Helper()
	req, v := w.request(), w.whole()
	defer v.Close()
	got, gotErr := w.s.Range(w.Context(), req)
	want, wantErr := v.Range(w.Context(), req)
	w.same(req, got, gotErr, want, wantErr)
}

func (w *twin) compareTxn() {
	w.Helper()
	req, v := w.drawTxn(2), w.whole()
	defer v.Close()
	got, gotErr := w.s.Txn(w.Context(), req)
	want, wantErr := v.Txn(w.Context(), req)
	w.same(req, got, gotErr, want, wantErr)
}

// compareUnchanged compares a transaction that would write in the branch that it does not take,
// or a deletion that finds nothing, with what the log would make of it.
func (w *twin) compareUnchanged() {
	w.Helper()
	w.near = true
	defer func() { w.near = false }()
	b, err := w.order.Ask(w.Context(), 1, raft.Leading{})
	if err != nil {
		w.Fatal(err)
	}
	number := mvcc.Opts{Number: b.First, Want: true}
	done := false
	defer func() {
		if !done {
			w.apply(func(m *mvcc.Writer) error { m.Reach(b.First); return nil })
		}
		w.showNewest() // a transaction over several shards that failed has taken some, too
	}()
	w.showNewest()
	v := w.whole()
	defer v.Close()
	if w.IntN(3) == 0 {
		req := &pb.DeleteRangeRequest{Key: w.key(), RangeEnd: [][]byte{nil, w.key()}[w.IntN(2)], PrevKv: w.IntN(2) == 0}
		found, err := v.Range(w.Context(), &pb.RangeRequest{Key: req.Key, RangeEnd: req.RangeEnd})
		if err != nil || found.Count > 0 {
			return
		}
		got, gotErr := w.s.DeleteRange(w.Context(), req)
		number.Number = max(number.Number, got.GetHeader().GetRevision())
		w.apply(func(m *mvcc.Writer) error {
			done = true
			want, wantErr := m.DeleteRange(req, number)
			w.same(req, got, gotErr, want, wantErr)
			return nil
		})
		return
	}
	req := w.drawTxn(1)
	held, err := v.Txn(w.Context(), &pb.TxnRequest{Compare: req.Compare})
	if err != nil {
		w.Fatal(err)
	}
	other := &req.Success
	if held.Succeeded {
		other = &req.Failure
	}
	*other = append(*other, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: w.key()}}})
	got, gotErr := w.s.Txn(w.Context(), req)
	number.Number = max(number.Number, got.GetHeader().GetRevision())
	w.apply(func(m *mvcc.Writer) error {
		done = true
		want, wantErr := m.Txn(req, number)
		if errors.Is(wantErr, mvcc.ErrFutureRev) && gotErr == nil {
			return nil // the log looks below its number
		}
		if errors.Is(wantErr, mvcc.ErrFutureRev) && !errors.Is(gotErr, mvcc.ErrFutureRev) {
			// The cluster may have taken more numbers, and looked behind them.
			b, err := w.order.Ask(w.Context(), 1, raft.Leading{})
			if err != nil {
				return err
			}
			number.Number = b.First
			want, wantErr = m.Txn(req, number)
		}
		w.same(req, headed(got), gotErr, headed(want), wantErr)
		return nil
	})
}

// showNewest has clients see the newest number, below which no serializable read falls.
func (w *twin) showNewest() {
	w.Helper()
	if _, err := w.s.Range(w.Context(), &pb.RangeRequest{Key: []byte("a")}); err != nil {
		w.Fatal(err)
	}
}

// headed drops the headers of what is in a transaction: the log reads below its number.
func headed(resp *pb.TxnResponse) *pb.TxnResponse {
	for _, r := range resp.GetResponses() {
		if found := r.GetResponseRange(); found != nil {
			found.Header = nil
		}
		headed(r.GetResponseTxn())
	}
	return resp
}

// drawTxn draws a transaction that only reads, with others nested in it up to a depth.
func (w *twin) drawTxn(depth int) *pb.TxnRequest {
	req := &pb.TxnRequest{}
	for range w.IntN(3) {
		c := &pb.Compare{Key: w.key(), Result: pb.Compare_CompareResult(w.IntN(4)), Target: pb.Compare_VERSION}
		c.TargetUnion = &pb.Compare_Version{Version: w.Int64N(3)}
		if w.IntN(2) == 0 {
			c.Target, c.TargetUnion = pb.Compare_VALUE, &pb.Compare_Value{Value: fmt.Append(nil, w.IntN(5))}
		}
		if w.IntN(2) == 0 {
			c.RangeEnd = w.key()
		}
		req.Compare = append(req.Compare, c)
	}
	for _, branch := range []*[]*pb.RequestOp{&req.Success, &req.Failure} {
		for range w.IntN(3) {
			op := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: w.request()}}
			if depth > 0 && w.IntN(4) == 0 {
				op.Request = &pb.RequestOp_RequestTxn{RequestTxn: w.drawTxn(depth - 1)}
			}
			*branch = append(*branch, op)
		}
	}
	return req
}

// compareStream compares the answers that the chunks amount to.
func (w *twin) compareStream() {
	w.Helper()
	req, v := w.request(), w.whole()
	req.SortOrder, req.SortTarget = pb.RangeRequest_NONE, pb.RangeRequest_KEY
	req.MinModRevision, req.MaxModRevision, req.MinCreateRevision, req.MaxCreateRevision = 0, 0, 0, 0
	maxBytes := w.IntN(300)
	chunks := func(stream func(context.Context, *pb.RangeRequest, int, func(*pb.RangeResponse) error) error) (*pb.RangeResponse, error) {
		all := &pb.RangeResponse{}
		err := stream(w.Context(), req, maxBytes, func(chunk *pb.RangeResponse) error {
			if all.Header != nil {
				w.Errorf("%v: a chunk after the one with the header", req)
			}
			all.Kvs = append(all.Kvs, chunk.Kvs...)
			all.Header, all.More, all.Count = chunk.Header, chunk.More, chunk.Count
			return nil
		})
		return all, err
	}
	got, gotErr := chunks(w.s.RangeStream)
	want, wantErr := chunks(v.RangeStream)
	w.same(req, got, gotErr, want, wantErr)
}

// Three shards answer as one store would that has all their keys.
func TestSeveralShardsAnswerAsOne(t *testing.T) {
	seed := testSeed(t, "LATCHKEY_MERGE_SEED")
	synctest.Test(t, func(t *testing.T) {
		w := newTwin(t, seed)
		defer w.close()
		for id := range int64(3) {
			if _, err := w.s.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: id + 1, TTL: 10_000}); err != nil {
				t.Fatal(err)
			}
		}
		steps := 4000
		if testing.Short() {
			steps = 1000
		}
		for range steps {
			switch n := w.IntN(40); {
			case n < 10:
				w.change()
			case n == 10:
				w.compact()
			case n < 25:
				w.compareRange()
			case n < 30:
				w.compareTxn()
			case n < 32:
				w.compareUnchanged()
			default:
				w.compareStream()
			}
		}
	})
}
