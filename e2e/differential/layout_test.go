package differential

import (
	"bytes"
	"fmt"
	"slices"
	"sort"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/e2e/harness"
	"github.com/latchkey-db/latchkey/internal/keys"
)

// layout is the keys that requests choose from, and how they are divided among
// shards.
type layout struct {
	pool [][]byte
	// splits are the first keys of all shards but the first.
	splits [][]byte
	// shards are the keys of each shard, sorted.
	shards [][][]byte

	// puts counts the puts that happened in each shard; ranges and watches what was
	// asked for, and crossing what of that was about several shards. Of writes over
	// several shards, accepted counts those that were not refused, by kind, and changed the
	// ones that changed keys of several shards.
	puts                     []int
	ranges, crossingRanges   int
	watches, crossingWatches int
	accepted                 map[string]int
	changed                  int
}

// newLayout divides the keys evenly among n shards. Beyond a few shards there are
// more of them, so that each shard still has some.
func newLayout(n int) *layout {
	const few = 4
	l := &layout{pool: slices.Clone(keyPool), accepted: map[string]int{}, puts: make([]int, n)}
	if n > few {
		for _, key := range keyPool {
			l.pool = append(l.pool, append(slices.Clone(key), "\x00x"...), append(slices.Clone(key), "/w"...))
		}
	}
	sorted := slices.Clone(l.pool)
	slices.SortFunc(sorted, bytes.Compare)
	for i := range n {
		share := sorted[i*len(sorted)/n : (i+1)*len(sorted)/n]
		l.shards = append(l.shards, share)
		if i > 0 {
			l.splits = append(l.splits, share[0])
		}
	}
	return l
}

// flags returns the flags of a server that divides its keys so.
func (l *layout) flags() []string {
	if len(l.splits) == 0 {
		return nil
	}
	return []string{harness.SplitsFlag, l.flag()}
}

// flag returns the value of --initial-splits.
func (l *layout) flag() string {
	words := make([]string, len(l.splits))
	for i, key := range l.splits {
		for _, c := range key {
			words[i] += fmt.Sprintf("\\x%02x", c)
		}
	}
	return strings.Join(words, ",")
}

// shardOf returns the shard of a key.
func (l *layout) shardOf(key []byte) int {
	return sort.Search(len(l.splits), func(i int) bool { return bytes.Compare(l.splits[i], key) > 0 })
}

// span returns the keys of a shard, as a request names them.
func (l *layout) span(shard int) (key, end []byte) {
	key, end = []byte{0}, []byte{0}
	if shard > 0 {
		key = l.splits[shard-1]
	}
	if shard < len(l.splits) {
		end = l.splits[shard]
	}
	return key, end
}

// threeKeys returns keys of different shards, if there are as many, in order.
func (l *layout) threeKeys(g *generator) [][]byte {
	if len(l.splits) == 0 {
		return l.shards[0][:3]
	}
	three := make([][]byte, 3)
	for i := range three {
		three[i] = pick(g, l.shards[i*len(l.shards)/3])
	}
	return three
}

// touched returns the first and the last shard of a range.
func (l *layout) touched(key, end []byte) (first, last int) {
	s := keys.FromRange(key, end)
	first = l.shardOf(s.Start)
	if s.End == nil {
		return first, len(l.splits)
	}
	// The shard of the last key before the end.
	last = sort.Search(len(l.splits), func(i int) bool { return bytes.Compare(l.splits[i], s.End) >= 0 })
	return first, max(first, last)
}

func (l *layout) crosses(key, end []byte) bool {
	first, last := l.touched(key, end)
	return first != last
}

// wide tells whether a request is a write that names keys of several shards.
func (l *layout) wide(req proto.Message) bool {
	if len(l.splits) == 0 {
		return false
	}
	switch r := req.(type) {
	case *pb.DeleteRangeRequest:
		return l.crosses(r.GetKey(), r.GetRangeEnd())
	case *pb.TxnRequest:
		return !onlyReads(r) && l.txnCrosses(r)
	default:
		return false
	}
}

// onlyReads tells whether a transaction is one of ranges alone, with those nested in it.
func onlyReads(r *pb.TxnRequest) bool {
	for _, op := range slices.Concat(r.GetSuccess(), r.GetFailure()) {
		nested := op.GetRequestTxn()
		if op.GetRequestRange() == nil && (nested == nil || !onlyReads(nested)) {
			return false
		}
	}
	return true
}

// txnCrosses tells whether a transaction names keys of several shards.
func (l *layout) txnCrosses(r *pb.TxnRequest) bool {
	lowest, highest := len(l.splits), 0
	eachMessage(r, func(m proto.Message) {
		ranged, ok := m.(interface{ GetKey() []byte })
		if !ok {
			return
		}
		var end []byte
		if m, ok := m.(interface{ GetRangeEnd() []byte }); ok {
			end = m.GetRangeEnd()
		}
		if keys.FromRange(ranged.GetKey(), end).Empty() {
			return
		}
		first, last := l.touched(ranged.GetKey(), end)
		lowest, highest = min(lowest, first), max(highest, last)
	})
	return lowest < highest
}

// asked counts a request by the shards that it is about.
func (l *layout) asked(req proto.Message) {
	count := func(all, crossing *int, key, end []byte) {
		*all++
		if l.crosses(key, end) {
			*crossing++
		}
	}
	switch r := req.(type) {
	case *pb.RangeRequest:
		count(&l.ranges, &l.crossingRanges, r.GetKey(), r.GetRangeEnd())
	case *pb.WatchCreateRequest:
		count(&l.watches, &l.crossingWatches, r.GetKey(), r.GetRangeEnd())
	}
}

// happened counts an event by its shard.
func (l *layout) happened(e *mvccpb.Event) {
	if e.GetType() == mvccpb.Event_PUT {
		l.puts[l.shardOf(e.GetKv().GetKey())]++
	}
}

// answered counts the answer to a write over several shards.
func (l *layout) answered(kind string, a answer) {
	if a.err == nil {
		l.accepted[kind]++
	}
}

func (l *layout) print(b *strings.Builder) {
	if len(l.splits) == 0 {
		return
	}
	fmt.Fprintf(b, "shards: puts %v, %d of %d ranges and %d of %d watches crossed shards, writes accepted: %v; %d changed several\n",
		l.puts, l.crossingRanges, l.ranges, l.crossingWatches, l.watches, l.accepted, l.changed)
}

// missed fails when the run has been too little about several shards.
func (l *layout) missed(tb testing.TB) {
	tb.Helper()
	if len(l.splits) == 0 {
		return
	}
	total := 0
	for _, n := range l.puts {
		total += n
	}
	for i, n := range l.puts {
		if n*len(l.puts)*5/2 < total {
			tb.Errorf("shard %d got %d of %d puts", i, n, total)
		}
	}
	for name, n := range map[string][2]int{"ranges": {l.crossingRanges, l.ranges}, "watches": {l.crossingWatches, l.watches}} {
		if n[0]*100 < n[1]*30 {
			tb.Errorf("only %d of %d %s crossed shards", n[0], n[1], name)
		}
	}
	for _, kind := range []string{"DeleteRange", "Txn"} {
		if l.accepted[kind] == 0 {
			tb.Errorf("no %s over several shards was accepted", kind)
		}
	}
	if l.changed*100 < total {
		tb.Errorf("only %d writes changed keys of several shards", l.changed)
	}
}

// TestLayout checks which shards requests are about.
func TestLayout(t *testing.T) {
	for _, n := range []int{1, 4, 16} {
		l := newLayout(n)
		if len(l.shards) != n || len(l.splits) != n-1 {
			t.Fatalf("%d shards: %d shares, splits %q", n, len(l.shards), l.splits)
		}
		for i, share := range l.shards {
			key, end := l.span(i)
			if l.crosses(key, end) {
				t.Errorf("%d shards: [%q, %q) crosses", n, key, end)
			}
			for _, key := range share {
				if l.shardOf(key) != i {
					t.Errorf("%d shards: %q is in shard %d, not %d", n, key, l.shardOf(key), i)
				}
			}
			if i+1 < n && (!l.crosses(share[0], append(slices.Clone(end), 0)) || !l.crosses(share[0], []byte{0})) {
				t.Errorf("%d shards: a range from %q beyond %q does not cross", n, share[0], end)
			}
		}
	}
	l := newLayout(4)
	put := func(shard int) *pb.RequestOp { return harness.OpPut(string(l.shards[shard][0]), "") }
	get := func(shard int) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: l.shards[shard][1]}}}
	}
	nested := func(op *pb.RequestOp) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Success: []*pb.RequestOp{op}}}}
	}
	inverted := func(shard int) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: l.shards[shard][0], RangeEnd: []byte("\x01")}}}
	}
	for _, tt := range []struct {
		txn  *pb.TxnRequest
		wide bool
	}{
		{&pb.TxnRequest{}, false},
		{&pb.TxnRequest{Success: []*pb.RequestOp{put(1), put(1)}}, false},
		{&pb.TxnRequest{Success: []*pb.RequestOp{put(1)}, Failure: []*pb.RequestOp{put(2)}}, true},
		{&pb.TxnRequest{Success: []*pb.RequestOp{put(1)}, Failure: []*pb.RequestOp{get(2)}}, true},
		{&pb.TxnRequest{Success: []*pb.RequestOp{get(1)}, Failure: []*pb.RequestOp{get(2)}}, false},
		{&pb.TxnRequest{Success: []*pb.RequestOp{get(1), nested(get(2))}}, false},
		{&pb.TxnRequest{Success: []*pb.RequestOp{get(1), nested(put(2))}}, true},
		{&pb.TxnRequest{Success: []*pb.RequestOp{put(1), inverted(2)}}, false},
		{&pb.TxnRequest{Compare: []*pb.Compare{{Key: l.shards[3][0]}}, Success: []*pb.RequestOp{put(1)}}, true},
	} {
		if l.wide(tt.txn) != tt.wide {
			t.Errorf("%v: over several shards: %t", tt.txn, !tt.wide)
		}
	}
}
