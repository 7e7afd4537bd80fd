package api

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/auth"
)

func opPut(key string) *pb.RequestOp { return opOf(&pb.PutRequest{Key: []byte(key)}) }

func opDel(key, end string) *pb.RequestOp {
	return opOf(&pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end)})
}

func opGet(key string) *pb.RequestOp { return opOf(&pb.RangeRequest{Key: []byte(key)}) }

func opTxn(then, els []*pb.RequestOp) *pb.RequestOp {
	return opOf(&pb.TxnRequest{Success: then, Failure: els})
}

// opOf wraps a request of any kind.
func opOf(m proto.Message) *pb.RequestOp {
	switch r := m.(type) {
	case *pb.PutRequest:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r}}
	case *pb.DeleteRangeRequest:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}
	case *pb.RangeRequest:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
	case *pb.TxnRequest:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: r}}
	default:
		return &pb.RequestOp{}
	}
}

func ops(o ...*pb.RequestOp) []*pb.RequestOp { return o }

// many returns n gets of distinct keys.
func many(n int) []*pb.RequestOp {
	out := make([]*pb.RequestOp, n)
	for i := range out {
		out[i] = opGet(fmt.Sprint("key", i))
	}
	return out
}

func compares(n int) []*pb.Compare {
	out := make([]*pb.Compare, n)
	for i := range out {
		out[i] = &pb.Compare{Key: []byte("k")}
	}
	return out
}

func testRules() *rules {
	return &rules{
		maxTxnOps:       DefaultMaxTxnOps,
		maxRequestBytes: DefaultMaxRequestBytes,
		envelope:        envelopeOf(testMember),
		minLeaseTTL:     2,
	}
}

func TestCheckRange(t *testing.T) {
	key := []byte("k")
	for name, tc := range map[string]struct {
		r            *pb.RangeRequest
		want, stream error
	}{
		"plain":               {r: &pb.RangeRequest{Key: key}},
		"no key":              {&pb.RangeRequest{}, errEmptyKey, errEmptyKey},
		"no key, range end":   {&pb.RangeRequest{RangeEnd: key}, errEmptyKey, errEmptyKey},
		"empty range":         {r: &pb.RangeRequest{Key: key, RangeEnd: []byte("a")}},
		"unknown order":       {&pb.RangeRequest{Key: key, SortOrder: 3}, errInvalidSortOption, errInvalidSortOption},
		"negative order":      {&pb.RangeRequest{Key: key, SortOrder: -1}, errInvalidSortOption, errInvalidSortOption},
		"unknown target":      {&pb.RangeRequest{Key: key, SortTarget: 5}, errInvalidSortOption, errInvalidSortOption},
		"key before sort":     {&pb.RangeRequest{SortTarget: 5}, errEmptyKey, errEmptyKey},
		"ascending keys":      {r: &pb.RangeRequest{Key: key, SortOrder: pb.RangeRequest_ASCEND}},
		"descending keys":     {&pb.RangeRequest{Key: key, SortOrder: pb.RangeRequest_DESCEND}, nil, errStreamSort},
		"ascending values":    {&pb.RangeRequest{Key: key, SortOrder: pb.RangeRequest_ASCEND, SortTarget: pb.RangeRequest_VALUE}, nil, errStreamSort},
		"target, no order":    {r: &pb.RangeRequest{Key: key, SortTarget: pb.RangeRequest_MOD}},
		"min mod":             {&pb.RangeRequest{Key: key, MinModRevision: 1}, nil, errStreamFilter},
		"max mod":             {&pb.RangeRequest{Key: key, MaxModRevision: 1}, nil, errStreamFilter},
		"min create":          {&pb.RangeRequest{Key: key, MinCreateRevision: 1}, nil, errStreamFilter},
		"max create":          {&pb.RangeRequest{Key: key, MaxCreateRevision: -1}, nil, errStreamFilter},
		"sort before filters": {&pb.RangeRequest{Key: key, SortOrder: pb.RangeRequest_DESCEND, MinModRevision: 1}, nil, errStreamSort},
	} {
		t.Run(name, func(t *testing.T) {
			if got := checkRange(tc.r); !errors.Is(got, tc.want) {
				t.Errorf("checkRange = %v, want %v", got, tc.want)
			}
			if got := checkRangeStream(tc.r); !errors.Is(got, tc.stream) {
				t.Errorf("checkRangeStream = %v, want %v", got, tc.stream)
			}
		})
	}
}

func TestCheckPut(t *testing.T) {
	key, value := []byte("k"), []byte("v")
	for name, tc := range map[string]struct {
		r    *pb.PutRequest
		want error
	}{
		"plain":               {&pb.PutRequest{Key: key}, nil},
		"no key":              {&pb.PutRequest{Value: value}, errEmptyKey},
		"keep value":          {&pb.PutRequest{Key: key, IgnoreValue: true}, nil},
		"keep value, given":   {&pb.PutRequest{Key: key, Value: value, IgnoreValue: true}, errValueProvided},
		"keep lease":          {&pb.PutRequest{Key: key, IgnoreLease: true}, nil},
		"keep lease, given":   {&pb.PutRequest{Key: key, Lease: 1, IgnoreLease: true}, errLeaseProvided},
		"value before lease":  {&pb.PutRequest{Key: key, Value: value, Lease: 1, IgnoreValue: true, IgnoreLease: true}, errValueProvided},
		"key before value":    {&pb.PutRequest{Value: value, IgnoreValue: true}, errEmptyKey},
		"negative lease kept": {&pb.PutRequest{Key: key, Lease: -1, IgnoreLease: true}, errLeaseProvided},
	} {
		t.Run(name, func(t *testing.T) {
			if got := checkPut(tc.r); !errors.Is(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestCheckTxn(t *testing.T) {
	for name, tc := range map[string]struct {
		r    *pb.TxnRequest
		want error
	}{
		"empty":               {&pb.TxnRequest{}, nil},
		"full":                {&pb.TxnRequest{Compare: compares(128), Success: many(128), Failure: many(128)}, nil},
		"too many compares":   {&pb.TxnRequest{Compare: compares(129)}, errTooManyOps},
		"too many then":       {&pb.TxnRequest{Success: many(129)}, errTooManyOps},
		"too many else":       {&pb.TxnRequest{Failure: many(129)}, errTooManyOps},
		"nested within":       {&pb.TxnRequest{Success: ops(opTxn(many(127), nil))}, nil},
		"nested beyond":       {&pb.TxnRequest{Success: ops(opTxn(many(128), nil))}, errTooManyOps},
		"nested, compares":    {&pb.TxnRequest{Compare: compares(2), Success: ops(opTxn(many(127), nil))}, errTooManyOps},
		"nested in full":      {&pb.TxnRequest{Success: append(many(127), opTxn(nil, nil))}, nil},
		"nested twice":        {&pb.TxnRequest{Success: ops(opTxn(nil, ops(opTxn(many(126), nil))))}, nil},
		"nested twice beyond": {&pb.TxnRequest{Success: ops(opTxn(nil, ops(opTxn(many(127), nil))))}, errTooManyOps},
		"compare without key": {&pb.TxnRequest{Compare: []*pb.Compare{{}}, Success: ops(&pb.RequestOp{})}, errEmptyKey},
		"count before keys":   {&pb.TxnRequest{Compare: []*pb.Compare{{}}, Success: many(129)}, errTooManyOps},
		"op without request":  {&pb.TxnRequest{Success: ops(&pb.RequestOp{})}, errKeyNotFound},
		"range without key":   {&pb.TxnRequest{Success: ops(opGet(""))}, errEmptyKey},
		"put without key":     {&pb.TxnRequest{Failure: ops(opPut(""))}, errEmptyKey},
		"delete without key":  {&pb.TxnRequest{Failure: ops(opDel("", "z"))}, errEmptyKey},
		"nested without key":  {&pb.TxnRequest{Failure: ops(opTxn(nil, ops(opPut(""))))}, errEmptyKey},
		"nested compare":      {&pb.TxnRequest{Success: ops(opOf(&pb.TxnRequest{Compare: []*pb.Compare{{}}}))}, errEmptyKey},
		"sort option":         {&pb.TxnRequest{Success: ops(opOf(&pb.RangeRequest{Key: []byte("k"), SortOrder: 9}))}, errInvalidSortOption},
		"first fault":         {&pb.TxnRequest{Success: ops(&pb.RequestOp{}, opPut(""))}, errKeyNotFound},
		"then before else":    {&pb.TxnRequest{Success: ops(opPut("")), Failure: ops(&pb.RequestOp{})}, errEmptyKey},
		"faults before dups":  {&pb.TxnRequest{Success: ops(opPut("a"), opPut("a")), Failure: ops(opPut(""))}, errEmptyKey},
		"dup in then":         {&pb.TxnRequest{Success: ops(opPut("a"), opPut("a"))}, errDuplicateKey},
		"dup in else":         {&pb.TxnRequest{Failure: ops(opPut("a"), opPut("a"))}, errDuplicateKey},
		"then and else":       {&pb.TxnRequest{Success: ops(opPut("a")), Failure: ops(opPut("a"))}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := testRules().txn(tc.r); !errors.Is(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestIsReadOnly(t *testing.T) {
	for name, tc := range map[string]struct {
		r    *pb.TxnRequest
		want bool
	}{
		"empty":        {&pb.TxnRequest{}, true},
		"gets":         {&pb.TxnRequest{Success: many(2), Failure: many(1)}, true},
		"put":          {&pb.TxnRequest{Success: ops(opGet("a"), opPut("a"))}, false},
		"delete":       {&pb.TxnRequest{Failure: ops(opDel("a", ""))}, false},
		"nested gets":  {&pb.TxnRequest{Success: ops(opTxn(many(1), nil))}, false},
		"nested empty": {&pb.TxnRequest{Success: ops(opTxn(nil, nil))}, false},
	} {
		if got := isReadOnly(tc.r); got != tc.want {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
}

// TestSizeLimit checks that the largest request that passes has exactly the limit
// as its size in etcd's log, for the id that etcd would give it and the sender.
func TestSizeLimit(t *testing.T) {
	for _, member := range []uint64{testMember, 0x1, 0x7fff, 0x8000, 0xff00000000000000} {
		for _, id := range []auth.Identity{
			{}, {User: "u", Revision: 1}, {Revision: 300}, {User: strings.Repeat("u", 110), Revision: 1 << 40}, {User: strings.Repeat("u", 300)},
		} {
			ru := testRules()
			ru.envelope = envelopeOf(member)
			ctx := auth.With(t.Context(), id)
			entry := func(r *pb.PutRequest) int {
				return proto.Size(&pb.InternalRaftRequest{
					Header: &pb.RequestHeader{ID: member<<48 | 0x8123456789ab, Username: id.User, AuthRevision: id.Revision},
					Put:    r,
				})
			}
			r := &pb.PutRequest{Key: []byte("k"), Value: make([]byte, DefaultMaxRequestBytes)}
			r.Value = r.Value[:len(r.Value)-(entry(r)-DefaultMaxRequestBytes)]
			if got := entry(r); got != DefaultMaxRequestBytes {
				t.Fatalf("member %x: the test's largest request has size %d", member, got)
			}
			if err := ru.size(ctx, r); err != nil {
				t.Errorf("member %x, sender %+v: at the limit: %v", member, id, err)
			}
			if err := ru.entrySize(id, &pb.InternalRaftRequest{Put: r}); err != nil {
				t.Errorf("member %x, sender %+v: entry at the limit: %v", member, id, err)
			}
			r.Value = append(r.Value, 0)
			if err := ru.size(ctx, r); !errors.Is(err, errRequestTooLarge) {
				t.Errorf("member %x, sender %+v: above the limit: %v", member, id, err)
			}
			if err := ru.entrySize(id, &pb.InternalRaftRequest{Put: r}); !errors.Is(err, errRequestTooLarge) {
				t.Errorf("member %x, sender %+v: entry above the limit: %v", member, id, err)
			}
		}
	}
}

// TestSizeLimitPasses checks that a transaction that only reads is never too large,
// and one that writes is.
func TestSizeLimitPasses(t *testing.T) {
	r := start(t, func(c *Config) { c.MaxRequestBytes = 100 })
	read := &pb.TxnRequest{Success: ops(opGet(strings.Repeat("k", 200)))}
	if _, err := r.kv.Txn(t.Context(), read); err != nil {
		t.Errorf("read: %v", err)
	}
	write := &pb.TxnRequest{Success: ops(opPut(strings.Repeat("k", 200)))}
	_, err := r.kv.Txn(t.Context(), write)
	wantStatus(t, err, codes.InvalidArgument, "etcdserver: request is too large")
}
