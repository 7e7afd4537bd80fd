package mvcc

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// longHistory is a store whose keys have long and short values, long and short
// histories, and end and begin again; and what it held at each revision.
type longHistory struct {
	*env
	states map[int64]map[string]*mvccpb.KeyValue
}

func newLongHistory(t *testing.T, rng *rand.Rand, changes int) *longHistory {
	t.Helper()
	h := &longHistory{env: newEnv(t, vfs.NewMem()), states: make(map[int64]map[string]*mvccpb.KeyValue)}
	t.Cleanup(h.close)
	now := make(map[string]*mvccpb.KeyValue)
	for i := range changes {
		// A few keys have most of the changes. Some hold what keys escape.
		n := rng.IntN(200)
		if rng.IntN(3) == 0 {
			n %= 5
		}
		key := fmt.Sprintf("k\x00%03d%s", n, strings.Repeat("\x00", n%3))
		if rng.IntN(5) == 0 {
			h.del(key, "")
			delete(now, key)
		} else {
			value := fmt.Sprintf("%d %s", i, strings.Repeat("v", rng.IntN(4*inlineValue)))
			rev := h.put(key, value)
			kv := &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), CreateRevision: rev, ModRevision: rev, Version: 1}
			if old := now[key]; old != nil {
				kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
			}
			now[key] = kv
		}
		h.states[h.s.Rev()] = maps.Clone(now)
		if i == changes/2 {
			if err := h.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return h
}

// want returns the keys that a request must find.
func (h *longHistory) want(req *pb.RangeRequest, rev int64) (kvs []*mvccpb.KeyValue, count int64) {
	for _, kv := range h.states[rev] {
		if bytes.Compare(kv.Key, req.Key) >= 0 && bytes.Compare(kv.Key, req.RangeEnd) < 0 {
			kvs = append(kvs, kv)
		}
	}
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
	if req.SortTarget == pb.RangeRequest_VALUE {
		slices.SortStableFunc(kvs, func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Value, b.Value) })
	}
	if req.SortTarget == pb.RangeRequest_MOD {
		slices.SortStableFunc(kvs, func(a, b *mvccpb.KeyValue) int { return int(b.ModRevision - a.ModRevision) })
	}
	count = int64(len(kvs))
	if req.Limit > 0 {
		kvs = kvs[:min(count, req.Limit)]
	}
	return kvs, count
}

// TestRangesOfLongHistories reads spans, whole and by page, now, a little while ago
// and long ago.
func TestRangesOfLongHistories(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { readLongHistory(t, rand.New(rand.NewPCG(seed, 14))) })
	}
}

func readLongHistory(t *testing.T, rng *rand.Rand) {
	t.Helper()
	h := newLongHistory(t, rng, 1500)
	v := h.s.View()
	defer v.Close()
	for range 400 {
		from := rng.IntN(200)
		req := &pb.RangeRequest{Key: fmt.Appendf(nil, "k\x00%03d", from), RangeEnd: fmt.Appendf(nil, "k\x00%03d", from+rng.IntN(200))}
		switch rng.IntN(3) {
		case 0:
			req.Limit = rng.Int64N(50) + 1
		case 1:
			req.SortTarget, req.SortOrder = pb.RangeRequest_MOD, pb.RangeRequest_DESCEND
		}
		if rng.IntN(4) == 0 {
			req.SortTarget, req.SortOrder = pb.RangeRequest_VALUE, pb.RangeRequest_ASCEND
		}
		rev := v.Rev()
		switch rng.IntN(3) {
		case 0:
			rev -= rng.Int64N(20)
		case 1:
			for h.states[rev] == nil || rev == v.Rev() {
				rev = 2 + rng.Int64N(v.Rev()-2)
			}
		}
		if rev != v.Rev() {
			req.Revision = rev
		}
		kvs, count := h.want(req, rev)
		resp, err := v.Range(background, req)
		if err != nil {
			t.Fatalf("%v: %v", req, err)
		}
		same := func(a, b *mvccpb.KeyValue) bool {
			return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) &&
				a.CreateRevision == b.CreateRevision && a.ModRevision == b.ModRevision && a.Version == b.Version
		}
		if resp.Count != count || resp.More != (int64(len(kvs)) < count) || !slices.EqualFunc(resp.Kvs, kvs, same) {
			t.Fatalf("%v: %d of %d keys, %v more; want %d of %d", req, len(resp.Kvs), resp.Count, resp.More, len(kvs), count)
		}
	}
}
