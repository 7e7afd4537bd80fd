package router

import (
	"errors"
	"testing"
	"testing/synctest"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/mvcc"
)

// txnOf returns a transaction of requests.
func txnOf(reqs ...any) *pb.TxnRequest {
	req := &pb.TxnRequest{}
	for _, r := range reqs {
		op := &pb.RequestOp{}
		switch r := r.(type) {
		case *pb.PutRequest:
			op.Request = &pb.RequestOp_RequestPut{RequestPut: r}
		case *pb.DeleteRangeRequest:
			op.Request = &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}
		case *pb.RangeRequest:
			op.Request = &pb.RequestOp_RequestRange{RequestRange: r}
		case *pb.TxnRequest:
			op.Request = &pb.RequestOp_RequestTxn{RequestTxn: r}
		}
		req.Success = append(req.Success, op)
	}
	return req
}

func getAt(key, end string, rev int64) *pb.RangeRequest {
	return &pb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end), Revision: rev}
}

func del(key, end string) *pb.DeleteRangeRequest {
	return &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end)}
}

// missing is a compare that fails: it wants a key to be missing.
func missing(key string) *pb.Compare {
	return &pb.Compare{Key: []byte(key), Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{}}
}

// A transaction over shards that is rejected is rejected for its first operation that can't be
// carried out, whichever node knows of the reason.
func TestWideErrorsComeInOrder(t *testing.T) {
	const future, past = 1000, 2
	keepsValue := &pb.PutRequest{Key: []byte("zz"), IgnoreValue: true}
	ofLease := &pb.PutRequest{Key: []byte("zz"), Lease: 7}
	for name, tc := range map[string]struct {
		req  *pb.TxnRequest
		want error
	}{
		"future, key":       {txnOf(put("a"), getAt("z", "", future), keepsValue), mvcc.ErrFutureRev},
		"key, future":       {txnOf(put("a"), keepsValue, getAt("z", "", future)), mvcc.ErrKeyNotFound},
		"future, lease":     {txnOf(put("a"), getAt("z", "", future), ofLease), mvcc.ErrFutureRev},
		"lease, future":     {txnOf(put("a"), ofLease, getAt("z", "", future)), mvcc.ErrLeaseNotFound},
		"compacted, key":    {txnOf(put("a"), getAt("z", "", past), keepsValue), mvcc.ErrCompacted},
		"key, compacted":    {txnOf(put("a"), keepsValue, getAt("z", "", past)), mvcc.ErrKeyNotFound},
		"future, compacted": {txnOf(put("a"), getAt("z", "", future), getAt("z", "", past)), mvcc.ErrFutureRev},
		"compacted, future": {txnOf(put("a"), getAt("z", "", past), getAt("z", "", future)), mvcc.ErrCompacted},
		"nested":            {txnOf(put("a"), txnOf(getAt("z", "", future)), keepsValue), mvcc.ErrFutureRev},
		"no keys to write": {
			txnOf(del("z", "a"), getAt("a", "", past), getAt("z", "", future)), mvcc.ErrCompacted,
		},
		"no keys to write, future": {
			txnOf(del("z", "a"), getAt("z", "", future), getAt("a", "", past)), mvcc.ErrFutureRev,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTestCluster(t, two, false)
				defer s.close(t)
				for range 5 {
					if _, err := s.Put(t.Context(), put("z")); err != nil {
						t.Fatal(err)
					}
				}
				// The node has not heard of it.
				if _, err := s.order.Compact(t.Context(), 4); err != nil {
					t.Fatal(err)
				}
				before, err := s.newestNumber(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.Txn(t.Context(), tc.req); !errors.Is(err, tc.want) {
					t.Errorf("%v, want %v", err, tc.want)
				}
				r, err := s.Range(t.Context(), getAt("a", "zz", 0))
				if err != nil {
					t.Fatal(err)
				}
				if len(r.Kvs) != 1 || r.Kvs[0].ModRevision > before.Newest {
					t.Errorf("it left %v", r.Kvs)
				}
			})
		})
	}
}

// What changes nothing takes no revision, over however many shards it goes; and ranges that end
// before they begin, or are empty, take no part in where a write goes.
func TestNothingToWriteTakesNoRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, two, false)
		defer s.close(t)
		if _, err := s.Txn(t.Context(), txnOf(put("a"), put("z"))); err != nil {
			t.Fatal(err)
		}
		revisions := func(name string, want int64, call func() (*pb.ResponseHeader, error)) {
			t.Helper()
			before, err := s.newestNumber(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			header, err := call()
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			after, err := s.newestNumber(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if took := after.Newest - before.Newest; took != want || header.GetRevision() != after.Newest {
				t.Errorf("%s took %d numbers, want %d, and is at %d of %d", name, took, want, header.GetRevision(), after.Newest)
			}
		}
		fails := func(taken *pb.TxnRequest, other ...any) *pb.TxnRequest {
			return &pb.TxnRequest{
				Compare: []*pb.Compare{missing("a"), missing("z")}, Success: txnOf(other...).Success, Failure: taken.Success,
			}
		}
		for name, tc := range map[string]struct {
			req     *pb.TxnRequest
			numbers int64
		}{
			"nothing":                             {txnOf(), 0},
			"reads":                               {txnOf(getAt("a", "", 0), getAt("z", "", 0)), 0},
			"nested reads":                        {txnOf(txnOf(getAt("a", "", 0)), txnOf(txnOf(getAt("z", "", 0)))), 0},
			"nested reads behind compares":        {fails(txnOf(txnOf(getAt("a", "zz", 0))), txnOf(getAt("z", "", 0))), 0},
			"inverted deletions over shards":      {txnOf(del("z", "a"), del("y", "b")), 0},
			"an inverted deletion beside reads":   {txnOf(del("z", "a"), getAt("a", "", 0), txnOf(getAt("z", "", 0))), 0},
			"empty deletions":                     {txnOf(del("z", "z"), del("a", "a")), 0},
			"a path that reads":                   {fails(txnOf(getAt("a", "zz", 0)), put("a"), put("z")), 0},
			"a path without operations":           {fails(txnOf(), put("a"), put("z")), 0},
			"a path of nested reads":              {fails(txnOf(txnOf(getAt("z", "", 0))), put("a"), del("y", "zz")), 0},
			"a put beside an inverted range":      {txnOf(put("a"), getAt("z", "b", 0)), 1},
			"a put beside an inverted deletion":   {txnOf(put("z"), del("y", "b")), 1},
			"a put beside an empty range":         {txnOf(put("a"), getAt("z", "z", 0)), 1},
			"a put beside an empty deletion":      {txnOf(put("a"), del("z", "z")), 1},
			"a put under an inverted compare":     {&pb.TxnRequest{Compare: []*pb.Compare{inverted()}, Success: txnOf(put("a")).Success}, 1},
			"a put beside an inverted nested one": {txnOf(put("a"), txnOf(del("z", "b"), getAt("z", "y", 0))), 1},
		} {
			revisions(name, tc.numbers, func() (*pb.ResponseHeader, error) {
				resp, err := s.Txn(t.Context(), tc.req)
				return resp.GetHeader(), err
			})
		}
		for name, req := range map[string]*pb.DeleteRangeRequest{
			"an inverted deletion":              del("z", "a"),
			"an inverted deletion over shards":  del("y", "b"),
			"an empty deletion":                 del("z", "z"),
			"a deletion of nothing over shards": del("b", "y"),
		} {
			revisions(name, 0, func() (*pb.ResponseHeader, error) {
				resp, err := s.DeleteRange(t.Context(), req)
				return resp.GetHeader(), err
			})
		}
		for _, d := range s.shards {
			if held := d.Store().Met(nil, []keys.Span{{}}); len(held) > 0 {
				t.Errorf("%q is held", held)
			}
		}
	})
}

// inverted is a compare of a range that ends before it begins.
func inverted() *pb.Compare {
	return &pb.Compare{Key: []byte("z"), RangeEnd: []byte("b"), Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{}}
}
