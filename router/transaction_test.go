package router

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/mvcc"
)

// testSeed returns a seed that a variable may name.
func testSeed(t *testing.T, variable string) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv(variable); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("replay with %s=%d", variable, seed)
	return seed
}

// drawWrite draws a transaction that writes, with others nested in it up to a depth.
func (w *twin) drawWrite(depth int) *pb.TxnRequest {
	req := w.drawTxn(0)
	for _, branch := range []*[]*pb.RequestOp{&req.Success, &req.Failure} {
		for range w.IntN(5) {
			op := &pb.RequestOp{}
			switch n := w.IntN(8); {
			case n < 4:
				op.Request = &pb.RequestOp_RequestPut{RequestPut: w.drawPut()}
			case n < 6:
				op.Request = &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{
					Key: w.key(), RangeEnd: [][]byte{nil, nil, w.key(), {0}}[w.IntN(4)], PrevKv: w.IntN(2) == 0,
				}}
			case n == 6 && depth > 0:
				op.Request = &pb.RequestOp_RequestTxn{RequestTxn: w.drawWrite(depth - 1)}
			default:
				op.Request = &pb.RequestOp_RequestRange{RequestRange: w.request()}
			}
			*branch = append(*branch, op)
		}
	}
	return req
}

func (w *twin) drawPut() *pb.PutRequest {
	put := &pb.PutRequest{Key: w.key(), Value: fmt.Append(nil, w.IntN(5)), Lease: max(0, w.Int64N(6)-2), PrevKv: w.IntN(2) == 0}
	if w.IntN(8) == 0 {
		put.IgnoreValue, put.Value = true, nil
	}
	if w.IntN(8) == 0 {
		put.IgnoreLease, put.Lease = true, 0
	}
	return put
}

// write has the cluster and the store run a transaction and compares the answers.
func (w *twin) write() {
	w.Helper()
	req := w.drawWrite(2)
	before := proto.CloneOf(req)
	got, gotErr := w.s.Txn(w.Context(), req)
	if !proto.Equal(before, req) {
		w.Fatalf("%v was changed to %v", before, req)
	}
	number := got.GetHeader().GetRevision()
	if gotErr != nil {
		number = w.newest() + 1
	}
	if number <= w.store.Rev() {
		return // only read
	}
	w.apply(func(m *mvcc.Writer) error {
		want, wantErr := m.Txn(req, mvcc.Opts{Number: number, Want: true})
		w.same(req, headed(got), gotErr, headed(want), wantErr)
		return nil
	})
	if gotErr != nil {
		if _, err := w.order.Ask(w.Context(), 1, raft.Leading{}); err != nil { // the store has reached it
			w.Fatal(err)
		}
	}
	w.showNewest()
}

// Three shards write as one store would that has all their keys: the answers, the state at
// every revision, and the events, all of a revision together and in the order of operations.
func TestSeveralShardsWriteAsOne(t *testing.T) {
	seed := testSeed(t, "LATCHKEY_WIDE_SEED")
	synctest.Test(t, func(t *testing.T) {
		w := newTwin(t, seed)
		defer w.close()
		for id := range int64(3) {
			if _, err := w.s.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: id + 1, TTL: 10_000}); err != nil {
				t.Fatal(err)
			}
		}
		group, one := w.s.NewWatchGroup(), w.store.NewGroup()
		defer group.Close()
		defer one.Close()
		all := mvcc.WatchOptions{Key: []byte{0}, End: []byte{0}, PrevKV: true, Start: 2}
		group.Add(1, all)
		one.Add(1, all)
		steps := 3000
		if testing.Short() {
			steps = 600
		}
		for range steps {
			switch n := w.IntN(21); {
			case n < 6:
				w.write()
			case n == 20:
				w.revoke(1 + w.Int64N(3))
			case n < 9:
				w.change()
			case n < 15:
				w.compareRange()
			case n < 18:
				w.compareTxn()
			default:
				w.compareStream()
			}
		}
		w.sameEvents(group, one)
	})
}

// revoke ends a lease in the cluster, and in the store what is attached to it, and grants the lease
// anew.
func (w *twin) revoke(id int64) {
	w.Helper()
	var attached [][]byte
	v := w.store.View()
	v.EachLease(func(of int64, key []byte) bool {
		if of == id {
			attached = append(attached, key)
		}
		return true
	})
	v.Close()
	resp, err := w.s.LeaseRevoke(w.Context(), &pb.LeaseRevokeRequest{ID: id})
	if err != nil {
		w.Fatal(err)
	}
	w.apply(func(m *mvcc.Writer) error {
		_, n, err := m.DeleteKeys(attached, mvcc.Opts{Number: resp.Header.Revision})
		if n != len(attached) {
			w.Errorf("%d of %d keys of lease %d were there", n, len(attached), id)
		}
		m.Reach(resp.Header.Revision)
		return err
	})
	if _, err := w.s.LeaseGrant(w.Context(), &pb.LeaseGrantRequest{ID: id, TTL: 10_000}); err != nil {
		w.Fatal(err)
	}
	w.showNewest()
}

// sameEvents compares the batches of a watch over all shards with those of the store.
func (w *twin) sameEvents(group *WatchGroup, one *mvcc.Group) {
	w.Helper()
	var want, got []*mvccpb.Event
	for {
		b, ok, err := one.Poll()
		if err != nil {
			w.Fatal(err)
		}
		if !ok {
			break
		}
		want = append(want, b.Events...)
	}
	for len(got) < len(want) {
		b, ok, err := group.Poll()
		switch {
		case err != nil:
			w.Fatal(err)
		case !ok:
			select {
			case <-group.Ready():
			case <-time.After(time.Minute):
				w.Fatalf("%d of %d events came", len(got), len(want))
			}
			continue
		}
		first := len(got)
		got = append(got, b.Events...)
		if next := len(got); first > 0 && got[first-1].Kv.ModRevision == got[first].Kv.ModRevision ||
			next < len(want) && want[next].Kv.ModRevision == got[next-1].Kv.ModRevision {
			w.Fatalf("revision %d was split", b.Rev)
		}
	}
	for i := range want {
		if !proto.Equal(want[i], got[i]) {
			w.Fatalf("event %d of %d is %v, want %v", i, len(want), got[i], want[i])
		}
	}
}

// Transfers between accounts on three shards keep their sum, whoever looks: reads, transactions
// that read, serializable reads, and watches.
func TestTransfersKeepTheSum(t *testing.T) {
	const accounts, clients, rounds = 6, 8, 60
	seed := testSeed(t, "LATCHKEY_BANK_SEED")
	synctest.Test(t, func(t *testing.T) {
		w := newTwin(t, seed)
		defer w.close()
		account := func(i int) []byte { return []byte{"adf"[i%3], byte('0' + i)} }
		init := &pb.TxnRequest{}
		for i := range accounts {
			init.Success = append(init.Success, putOp(account(i), 100))
		}
		first, err := w.s.Txn(t.Context(), init)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for c := range clients {
			wg.Go(func() {
				random := rand.New(rand.NewPCG(seed, uint64(c)))
				for range rounds {
					from, to := random.IntN(accounts), random.IntN(accounts)
					if from == to {
						continue
					}
					transfer(t, w.s.Router, account(from), account(to), 1+random.IntN(5))
				}
			})
			wg.Go(func() {
				random := rand.New(rand.NewPCG(seed, uint64(clients+c)))
				for range rounds {
					resp, err := w.s.Range(t.Context(), &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z"), Serializable: random.IntN(2) == 0})
					if err != nil {
						t.Error(err)
						return
					}
					if resp.Header.Revision >= first.Header.Revision {
						sum(t, resp.Kvs, accounts)
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		wg.Wait()
		group := w.s.NewWatchGroup()
		defer group.Close()
		group.Add(1, mvcc.WatchOptions{Key: []byte("a"), End: []byte("z"), Start: first.Header.Revision})
		newest, err := w.s.Range(t.Context(), &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z")})
		if err != nil {
			t.Fatal(err)
		}
		last := int64(0)
		for _, kv := range newest.Kvs {
			last = max(last, kv.ModRevision)
		}
		state := make(map[string]*mvccpb.KeyValue)
		for seen := int64(0); seen < last; {
			b, ok, err := group.Poll()
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				<-group.Ready()
				continue
			}
			for i, e := range b.Events {
				state[string(e.Kv.Key)] = e.Kv
				seen = e.Kv.ModRevision
				if i+1 == len(b.Events) || b.Events[i+1].Kv.ModRevision != seen {
					kvs := make([]*mvccpb.KeyValue, 0, len(state))
					for _, kv := range state {
						kvs = append(kvs, kv)
					}
					sum(t, kvs, accounts)
				}
			}
		}
		held := 0
		for _, d := range w.s.shards {
			time.Sleep(3 * time.Second)
			held += len(d.Store().Met(nil, []keys.Span{{}}))
		}
		if held > 0 {
			t.Errorf("%d holds are left", held)
		}
	})
}

func putOp(key []byte, value int) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key, Value: strconv.AppendInt(nil, int64(value), 10)}}}
}

func valueOf(t *testing.T, kv *mvccpb.KeyValue) int {
	t.Helper()
	n, err := strconv.Atoi(string(kv.Value))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func sum(t *testing.T, kvs []*mvccpb.KeyValue, accounts int) {
	t.Helper()
	total := 0
	for _, kv := range kvs {
		total += valueOf(t, kv)
	}
	if len(kvs) != accounts || total != accounts*100 {
		t.Errorf("%d accounts have %d, want %d with %d", len(kvs), total, accounts, accounts*100)
	}
}

// transfer moves an amount if neither account has changed since it was read.
func transfer(t *testing.T, r *Router, from, to []byte, amount int) {
	t.Helper()
	for {
		read, err := r.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{getOp(from), getOp(to)}})
		if err != nil {
			t.Error(err)
			return
		}
		a, b := read.Responses[0].GetResponseRange().Kvs[0], read.Responses[1].GetResponseRange().Kvs[0]
		req := &pb.TxnRequest{
			Compare: []*pb.Compare{unchangedSince(a), unchangedSince(b)},
			Success: []*pb.RequestOp{putOp(from, valueOf(t, a)-amount), putOp(to, valueOf(t, b)+amount)},
		}
		resp, err := r.Txn(t.Context(), req)
		if err != nil {
			t.Error(err)
			return
		}
		if resp.Succeeded {
			return
		}
	}
}

func getOp(key []byte) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key}}}
}

func unchangedSince(kv *mvccpb.KeyValue) *pb.Compare {
	return &pb.Compare{
		Key: kv.Key, Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_ModRevision{ModRevision: kv.ModRevision},
	}
}
