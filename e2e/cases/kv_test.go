package cases

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// keysIn joins the keys of an answer.
func keysIn(kvs []*mvccpb.KeyValue) string {
	keys := make([]string, len(kvs))
	for i, kv := range kvs {
		keys[i] = fmt.Sprintf("%q", kv.Key)
	}
	return strings.Join(keys, " ")
}

// A put inside a range that the same transaction deletes is refused, whole and
// without a trace; the open range is not (22445).
func TestPutIntoDeletedRange(t *testing.T) {
	s := serve(t)
	s.Put("a", "old")
	r := s.Revision()
	for _, ops := range [][]*pb.RequestOp{
		{harness.OpDelete("a", ""), harness.OpPut("a", "")},
		{harness.OpDelete("a", "c"), harness.OpPut("b", "")},
		{harness.OpDelete("a", clientv3.GetPrefixRangeEnd("a")), harness.OpPut("ab", "")},
	} {
		_, err := s.KV.Txn(s.Bound(), &pb.TxnRequest{Success: ops})
		harness.WantStatus(t, fmt.Sprint(ops), err, rpctypes.ErrGRPCDuplicateKey)
	}
	if s.Revision() != r || string(s.Get("a")) != "old" {
		t.Errorf("a refused transaction left something: revision %d, a = %q", s.Revision(), s.Get("a"))
	}
	if resp := s.Txn(&pb.TxnRequest{Success: []*pb.RequestOp{harness.OpDelete("a", "\x00"), harness.OpPut("b", "")}}); resp.Header.Revision != r+1 {
		t.Errorf("the open form: %v", resp)
	}
}

// What is deleted and created again at one revision survives a compaction there,
// and a crash behind that (22376).
func TestDeleteAndCreateAtOneRevision(t *testing.T) {
	s := serve(t)
	s.Put("b", "old")
	at := s.Txn(&pb.TxnRequest{Success: []*pb.RequestOp{harness.OpDelete("a", "\x00"), harness.OpPut("b", "new")}}).Header.Revision
	check := func(when string) {
		t.Helper()
		got := s.Read(&pb.RangeRequest{Key: []byte("b")})
		if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "new" || got.Kvs[0].CreateRevision != at || got.Kvs[0].Version != 1 {
			t.Errorf("%s: %v", when, got.Kvs)
		}
	}
	check("written")
	s.Compact(at)
	check("compacted")
	s.Restart()
	check("restarted")
}

// Comparing what does not exist: every comparison of a value fails, its numbers
// are zero (19678, 7924).
func TestCompareMissingKeys(t *testing.T) {
	s := serve(t)
	for i, v := range []string{"x", "x", "y"} {
		s.Put(fmt.Sprintf("three/%d", i), v)
	}
	value := func(op pb.Compare_CompareResult, v string) *pb.Compare {
		return &pb.Compare{Result: op, Target: pb.Compare_VALUE, TargetUnion: &pb.Compare_Value{Value: []byte(v)}}
	}
	var values []*pb.Compare
	for op := range pb.Compare_CompareResult_name {
		for _, v := range []string{"", "x", "\xff"} {
			values = append(values, value(pb.Compare_CompareResult(op), v))
		}
	}
	zeros := []*pb.Compare{
		{Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{}},
		{Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{}},
		{Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{}},
		{Target: pb.Compare_LEASE, TargetUnion: &pb.Compare_Lease{}},
	}
	holds := func(c *pb.Compare, key, end string) bool {
		c.Key, c.RangeEnd = []byte(key), []byte(end)
		return s.Txn(&pb.TxnRequest{Compare: []*pb.Compare{c}}).Succeeded
	}
	for _, end := range []string{"", "missinh"} {
		for _, c := range values {
			if holds(c, "missing", end) {
				t.Errorf("holds: %v", c)
			}
		}
		for _, c := range zeros {
			if !holds(c, "missing", end) {
				t.Errorf("does not hold: %v", c)
			}
		}
		if holds(&pb.Compare{Result: pb.Compare_NOT_EQUAL, Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{}}, "missing", end) {
			t.Errorf("version != 0 holds, range end %q", end)
		}
	}
	if holds(value(pb.Compare_EQUAL, "x"), "three/", "three0") {
		t.Error("a range in which one key differs compares as equal")
	}
	if !holds(value(pb.Compare_EQUAL, "x"), "three/0", "three/2") {
		t.Error("a range of equal keys compares as different")
	}
	if !s.Txn(&pb.TxnRequest{}).Succeeded {
		t.Error("no comparison fails")
	}
}

// fill puts n keys of a prefix, in transactions.
func (s *served) fill(prefix string, n int) {
	s.T.Helper()
	const ops = 120
	var wg sync.WaitGroup
	for part := range 8 {
		wg.Go(func() {
			for first := part * ops; first < n; first += 8 * ops {
				r := &pb.TxnRequest{}
				for i := first; i < min(first+ops, n); i++ {
					r.Success = append(r.Success, harness.OpPut(fmt.Sprintf("%s%07d", prefix, i), "value"))
				}
				if _, err := s.KV.Txn(s.Bound(), r); err != nil {
					s.T.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// The count is that of all keys, whatever the limit cuts off (13056).
func TestLimitMoreCount(t *testing.T) {
	s := serve(t)
	const n = 1842
	s.fill("/registry/x/", n)
	s.Put("/registry/y", "")
	for _, order := range []pb.RangeRequest_SortOrder{pb.RangeRequest_NONE, pb.RangeRequest_DESCEND} {
		for _, limit := range []int64{0, 1, n - 1, n, n + 1} {
			for _, keysOnly := range []bool{false, true} {
				r := harness.UnderPrefix("/registry/x/", &pb.RangeRequest{Limit: limit, SortOrder: order, KeysOnly: keysOnly})
				got := s.Read(r)
				want := n
				if limit > 0 {
					want = min(n, int(limit))
				}
				if got.Count != n || len(got.Kvs) != want || got.More != (want < n) {
					t.Errorf("%v: count %d, %d keys, more %v", r, got.Count, len(got.Kvs), got.More)
				}
				for i, kv := range got.Kvs {
					at := i
					if order == pb.RangeRequest_DESCEND {
						at = n - 1 - i
					}
					if want := fmt.Sprintf("/registry/x/%07d", at); string(kv.Key) != want || keysOnly != (len(kv.Value) == 0) {
						t.Fatalf("%v: key %d is %q with %q, want %q", r, i, kv.Key, kv.Value, want)
					}
				}
			}
		}
		got := s.Read(harness.UnderPrefix("/registry/x/", &pb.RangeRequest{CountOnly: true, Limit: 7, SortOrder: order}))
		if got.Count != n || len(got.Kvs) != 0 || got.More {
			t.Errorf("count only: count %d, %d keys, more %v", got.Count, len(got.Kvs), got.More)
		}
	}
}

// Sorted by each target; no order means ascending; the limit cuts what was sorted
// (20745, 6100). Where no order is asked for, etcd sorts what the limit let
// through and one key more, and so do we.
func TestSortedRanges(t *testing.T) {
	s := serve(t)
	for _, kv := range []string{"d=2", "c=4", "b=3", "a=1", "c=5", "c=4", "c=0", "b=2", "b=3", "d=2"} {
		key, value, _ := strings.Cut(kv, "=")
		s.Put("s/"+key, value)
	}
	for _, tt := range []struct {
		target pb.RangeRequest_SortTarget
		want   string // ascending
	}{
		{pb.RangeRequest_KEY, "abcd"},
		{pb.RangeRequest_VERSION, "adbc"},
		{pb.RangeRequest_CREATE, "dcba"},
		{pb.RangeRequest_MOD, "acbd"},
		{pb.RangeRequest_VALUE, "cadb"},
	} {
		for _, order := range []pb.RangeRequest_SortOrder{pb.RangeRequest_NONE, pb.RangeRequest_ASCEND, pb.RangeRequest_DESCEND} {
			want := strings.Split(tt.want, "")
			if order == pb.RangeRequest_DESCEND {
				slices.Reverse(want)
			}
			for _, limit := range []int{0, 1, 3} {
				got := s.Read(harness.UnderPrefix("s/", &pb.RangeRequest{SortTarget: tt.target, SortOrder: order, Limit: int64(limit)}))
				want := want
				if limit > 0 {
					if order == pb.RangeRequest_NONE {
						// The store reads one key more than asked for, then sorts.
						want = slices.DeleteFunc(slices.Clone(want), func(k string) bool { return int(k[0]-'a') > limit })
					}
					want = want[:limit]
				}
				if keys := strings.NewReplacer(`"s/`, "", `"`, "").Replace(keysIn(got.Kvs)); keys != strings.Join(want, " ") ||
					got.Count != 4 || got.More != (limit > 0) {
					t.Errorf("%v %v limit %d: %s of %d, more %v, want %s", tt.target, order, limit, keys, got.Count, got.More, want)
				}
			}
		}
	}
	_, err := s.KV.Range(s.Bound(), harness.UnderPrefix("s/", &pb.RangeRequest{SortTarget: 9, SortOrder: pb.RangeRequest_ASCEND}))
	harness.WantStatus(t, "target outside the list", err, rpctypes.ErrGRPCInvalidSortOption)
	_, err = s.KV.Range(s.Bound(), harness.UnderPrefix("s/", &pb.RangeRequest{SortOrder: 9}))
	harness.WantStatus(t, "order outside the list", err, rpctypes.ErrGRPCInvalidSortOption)
}

// The zero byte and the empty key (9833, 11319, 5454).
func TestZeroBytesAndEmptyKeys(t *testing.T) {
	s := serve(t)
	for _, key := range []string{"b", "a/", "a\x00b", "a", "a\x00", "\x00", "Z"} {
		s.Put(key, "")
	}
	for _, tt := range []struct{ key, end, want string }{
		{"\x00", "\x00", `"\x00" "Z" "a" "a\x00" "a\x00b" "a/" "b"`},
		{"", "\x00", `"\x00" "Z" "a" "a\x00" "a\x00b" "a/" "b"`},
		{"a", "\x00", `"a" "a\x00" "a\x00b" "a/" "b"`},
		{"b", "a", ""},
		{"a", "b", `"a" "a\x00" "a\x00b" "a/"`},
		{"a", "", `"a"`},
	} {
		got, err := s.KV.Range(s.Bound(), &pb.RangeRequest{Key: []byte(tt.key), RangeEnd: []byte(tt.end)})
		if tt.key == "" {
			harness.WantStatus(t, "range from the empty key", err, rpctypes.ErrGRPCEmptyKey)
			continue
		}
		if err != nil || keysIn(got.Kvs) != tt.want || got.Count != int64(len(got.Kvs)) {
			t.Errorf("[%q, %q): %s, %d, %v, want %s", tt.key, tt.end, keysIn(got.GetKvs()), got.GetCount(), err, tt.want)
		}
	}
	_, err := s.KV.Range(s.Bound(), &pb.RangeRequest{})
	harness.WantStatus(t, "range of the empty key", err, rpctypes.ErrGRPCEmptyKey)
	_, err = s.KV.Put(s.Bound(), &pb.PutRequest{})
	harness.WantStatus(t, "put of the empty key", err, rpctypes.ErrGRPCEmptyKey)
}

// Requests have a bound, of which the connection survives the breach; answers have
// none (14997).
func TestSizeLimits(t *testing.T) {
	s := serve(t)
	const kib = 1 << 10
	if _, err := s.KV.Put(s.Bound(), &pb.PutRequest{Key: []byte("k"), Value: bytes.Repeat([]byte("v"), 1434*kib)}); err != nil {
		t.Errorf("1.4 MiB: %v", err)
	}
	r := s.Revision()
	_, err := s.KV.Put(s.Bound(), &pb.PutRequest{Key: []byte("k"), Value: bytes.Repeat([]byte("v"), 1638*kib)})
	harness.WantStatus(t, "1.6 MiB", err, rpctypes.ErrGRPCRequestTooLarge)
	txn := &pb.TxnRequest{}
	for i := range 16 {
		txn.Success = append(txn.Success, harness.OpPut(fmt.Sprintf("t/%d", i), strings.Repeat("v", 103*kib)))
	}
	_, err = s.KV.Txn(s.Bound(), txn)
	harness.WantStatus(t, "a transaction of 1.6 MiB", err, rpctypes.ErrGRPCRequestTooLarge)
	if s.Revision() != r || s.Count("t/") != 0 {
		t.Error("a refused request left something")
	}
	const keys = 5000
	for first := 0; first < keys; first += 100 {
		txn := &pb.TxnRequest{}
		for i := first; i < first+100; i++ {
			txn.Success = append(txn.Success, harness.OpPut(fmt.Sprintf("many/%d", i), strings.Repeat("v", 1000)))
		}
		s.Txn(txn)
	}
	got, err := s.C.Get(s.Bound(), "many/", clientv3.WithPrefix())
	if err != nil || len(got.Kvs) != keys || got.More {
		t.Errorf("%d keys of 5 MB: %v", len(got.Kvs), err)
	}
}

// A key that came and went looks like one that never was; one that went does not
// look like what it was. A software transaction runs again (7184).
func TestCompareAfterDelete(t *testing.T) {
	s := serve(t)
	if s.Get("k") != nil {
		t.Fatal("k is there")
	}
	if _, err := s.C.Put(s.Bound(), "k", "other"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.C.Delete(s.Bound(), "k"); err != nil {
		t.Fatal(err)
	}
	mod := func(rev int64) clientv3.Cmp { return clientv3.Compare(clientv3.ModRevision("k"), "=", rev) }
	first, err := s.C.Txn(s.Bound()).If(mod(0)).Then(clientv3.OpPut("k", "mine")).Commit()
	if err != nil || !first.Succeeded {
		t.Fatalf("mod = 0 after create and delete: %v, %v", first, err)
	}
	s.Delete("k")
	second, err := s.C.Txn(s.Bound()).If(mod(first.Header.Revision)).Then(clientv3.OpPut("k", "again")).Commit()
	if err != nil || second.Succeeded {
		t.Errorf("mod = %d after a delete: %v, %v", first.Header.Revision, second, err)
	}

	s.Put("stm", "1")
	runs := 0
	_, err = concurrency.NewSTM(s.C, func(stm concurrency.STM) error {
		runs++
		was := stm.Get("stm")
		if runs == 1 {
			s.Delete("stm") // between the read and the commit
		}
		stm.Put("stm/result", was+"!")
		return nil
	}, concurrency.WithAbortContext(s.Bound()))
	if err != nil || runs != 2 || string(s.Get("stm/result")) != "!" {
		t.Errorf("%d runs, %v, result %q", runs, err, s.Get("stm/result"))
	}
}

// Compactions twice, backwards and ahead of the store (4907, 21968). A compaction
// at the revision of the last one is refused, also where nothing was written since.
func TestCompactions(t *testing.T) {
	s := serve(t)
	r := s.Revision()
	for range 7 {
		s.Put("k", "")
	}
	s.Compact(r + 5)
	refused := func(rev int64, want error) {
		t.Helper()
		_, err := s.KV.Compact(s.Bound(), &pb.CompactionRequest{Revision: rev})
		harness.WantStatus(t, fmt.Sprintf("compact %d of %d", rev, s.Revision()), err, want)
	}
	refused(r+5, rpctypes.ErrGRPCCompacted)
	refused(r+3, rpctypes.ErrGRPCCompacted)
	refused(r+1000, rpctypes.ErrGRPCFutureRev)
	head := s.Revision()
	s.Compact(head)
	refused(head, rpctypes.ErrGRPCCompacted)
	if got := s.Read(&pb.RangeRequest{Key: []byte("k"), Revision: head}); len(got.Kvs) != 1 {
		t.Errorf("the compacted revision itself: %v", got)
	}
	_, err := s.KV.Range(s.Bound(), &pb.RangeRequest{Key: []byte("k"), Revision: head - 1})
	harness.WantStatus(t, "below the compaction", err, rpctypes.ErrGRPCCompacted)
	_, err = s.KV.Range(s.Bound(), &pb.RangeRequest{Key: []byte("k"), Revision: head + 1})
	harness.WantStatus(t, "ahead", err, rpctypes.ErrGRPCFutureRev)
}

// A list that is read page by page at the revision of its first page is the list
// of that revision, whatever is written meanwhile, until a compaction ends it
// (13056).
func TestPaging(t *testing.T) {
	s := serve(t)
	const keys, limit = 5000, 500
	const prefix = "/registry/x/"
	s.fill(prefix, keys)
	want := s.Read(harness.UnderPrefix(prefix, &pb.RangeRequest{})).Kvs
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			key := fmt.Appendf(nil, "%s%07d", prefix, i*7919%keys)
			if i%2 == 0 {
				_, _ = s.KV.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: key})
			} else {
				_, _ = s.KV.Put(ctx, &pb.PutRequest{Key: append(key, "+"...)})
			}
		}
	})
	defer writer.Wait()
	defer cancel()

	at := s.Read(harness.UnderPrefix(prefix, &pb.RangeRequest{Limit: 1})).Header.Revision
	if at > want[len(want)-1].ModRevision { // the writer was first
		want = s.Read(harness.UnderPrefix(prefix, &pb.RangeRequest{Revision: at})).Kvs
	}
	var got []*mvccpb.KeyValue
	more := true
	for key := prefix; more; key = string(got[len(got)-1].Key) + "\x00" {
		r := harness.UnderPrefix(prefix, &pb.RangeRequest{Limit: limit, Revision: at})
		r.Key = []byte(key)
		page := s.Read(r)
		if left := int64(len(want) - len(got)); page.Count != left || page.More != (left > limit) {
			t.Fatalf("behind %d of %d keys: count %d, more %v", len(got), len(want), page.Count, page.More)
		}
		got, more = append(got, page.Kvs...), page.More
	}
	if keysIn(got) != keysIn(want) {
		t.Errorf("%d keys in pages, %d at once", len(got), len(want))
	}
	s.Put("later", "")
	s.Compact(s.Revision())
	_, err := s.KV.Range(s.Bound(), harness.UnderPrefix(prefix, &pb.RangeRequest{Limit: limit, Revision: at}))
	harness.WantStatus(t, "page after compaction", err, rpctypes.ErrGRPCCompacted)
}
