package differential

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// Limits of the servers that requests go up to and beyond.
const (
	maxTxnOps       = 128
	maxRequestBytes = 1536 << 10
	maxLeaseTTL     = 9_000_000_000
	// longTTL outlives every run, in seconds: no lease may end by time.
	longTTL = 1_000_000
	// shortestTTL is what both servers grant at least.
	shortestTTL = 2 * time.Second
)

// keyPool are the keys that requests choose from: few enough to meet often, with
// prefixes of each other, directories, and the ends of the keyspace.
var keyPool = [][]byte{
	[]byte("a"), []byte("a\x00"), []byte("a\x00\x00"), []byte("aa"), []byte("a\xff"), []byte("a/"), []byte("a/b"),
	[]byte("a/c"), []byte("a/b/"), []byte("a/b/1"), []byte("a/b/2"), []byte("a/b/3"), []byte("a/b/c/1"), []byte("a0"),
	[]byte("b"), []byte("b/1"), []byte("b/2"), []byte("b/3"), []byte("b/4"), []byte("b/5"), []byte("b/\x00"), []byte("b/\xff"),
	[]byte("c"), []byte("\x00"), []byte("\x00\x00"), []byte("\x00\x01"), []byte("\x01"), []byte("\xff"), []byte("\xff\x00"),
	[]byte("\xff\xff"), []byte("z"), []byte("日本"), []byte("/"), []byte("//"), bytes.Repeat([]byte("k"), 300),
}

var (
	oddNumbers = []int64{0, -1, -2, 1, 2, math.MinInt64, math.MaxInt64, math.MaxInt64 - 1, math.MinInt64 + 1}
	// givenLeases are the ids that requests give to leases.
	givenLeases = []int64{1, 2, 3, 4, 5, 6, 7, -1, -2, math.MinInt64, math.MaxInt64}
)

// generator makes requests at random, of which most are valid and some are not.
// It knows no more of the servers than what it is told.
type generator struct {
	*rand.Rand

	// layout has the keys that requests choose from; home is the shard that the
	// request being made is about, -1 if it may be about all.
	layout *layout
	home   int
	// rev and compact are the store's newest and compacted revision.
	rev, compact int64
	// living are the leases that exist, by the reference's id, oldest first.
	living []int64
	// picked are those of them whose ids the servers picked, by the
	// reference's id.
	picked []int64
}

func newGenerator(seed uint64, l *layout) *generator {
	return &generator{Rand: rand.New(rand.NewPCG(seed, 0)), layout: l, home: -1, rev: 1, compact: -1}
}

// one tells, once in n calls.
func (g *generator) one(n int) bool { return g.IntN(n) == 0 }

func pick[T any](g *generator, from []T) T { return from[g.IntN(len(from))] }

// metadata returns what goes with a request beside its message.
func (g *generator) metadata() metadata.MD {
	switch g.IntN(20) {
	case 0:
		return metadata.Pairs("hasleader", "true")
	case 1:
		return metadata.Pairs("client-api-version", "3.7.3")
	case 2:
		return metadata.Pairs("client-api-version", "")
	case 3:
		return metadata.Pairs("token", "stale", "authorization", "Bearer stale")
	default:
		return nil
	}
}

func (g *generator) key() []byte {
	if g.one(100) {
		return nil
	}
	return pick(g, g.keys())
}

// keys returns the keys that the request being made is about.
func (g *generator) keys() [][]byte {
	if g.home >= 0 {
		return g.layout.shards[g.home]
	}
	return g.layout.pool
}

// rangeEnd returns an end for a range that begins at key. One in a shard does not
// leave it.
func (g *generator) rangeEnd(key []byte) []byte {
	switch {
	case g.home >= 0:
		end := g.anyEnd(key)
		if _, limit := g.layout.span(g.home); g.layout.crosses(key, end) {
			return limit
		}
		return end
	case len(g.layout.splits) > 0 && g.one(3):
		return g.farEnd(key)
	default:
		return g.anyEnd(key)
	}
}

// farEnd returns an end beyond the shard of key, if there is one.
func (g *generator) farEnd(key []byte) []byte {
	next := g.layout.shardOf(key) + 1
	if next >= len(g.layout.shards) || g.one(8) {
		return []byte{0}
	}
	beyond := g.layout.shards[next+g.IntN(len(g.layout.shards)-next)]
	return append(slices.Clone(pick(g, beyond)), 0)
}

func (g *generator) anyEnd(key []byte) []byte {
	switch n := g.IntN(20); {
	case n < 8:
		return nil
	case n < 10:
		return []byte{0}
	case n < 14:
		return prefixEnd(key)
	case n < 15:
		return append(slices.Clone(key), 0)
	case n < 16:
		return []byte{0xff, 0xff, 0xff}
	case n < 17:
		return []byte{0, 0}
	default:
		return pick(g, g.keys())
	}
}

// prefixEnd returns the first key after those that begin with key.
func prefixEnd(key []byte) []byte {
	end := bytes.TrimRight(key, "\xff")
	if len(end) == 0 {
		return []byte{0}
	}
	end = slices.Clone(end)
	end[len(end)-1]++
	return end
}

func (g *generator) value() []byte {
	switch g.IntN(12) {
	case 0:
		return nil
	case 1:
		return []byte{0}
	case 2:
		return []byte{0xff}
	case 3:
		return bytes.Repeat([]byte{byte(g.IntN(256))}, g.IntN(2000))
	default:
		return []byte{'v', '0' + byte(g.IntN(4))}
	}
}

// revision returns a revision to read at: mostly one that exists.
func (g *generator) revision() int64 {
	switch n := g.IntN(20); {
	case n < 12:
		return max(g.compact, 1) + g.Int64N(g.rev-max(g.compact, 1)+1)
	case n < 17:
		return pick(g, []int64{g.compact, g.compact - 1, g.compact + 1, g.rev - 1, g.rev, g.rev + 1})
	default:
		return pick(g, oddNumbers)
	}
}

func (g *generator) limit() int64 {
	switch n := g.IntN(10); {
	case n < 5:
		return 0
	case n < 8:
		return 1 + g.Int64N(4)
	case n < 9:
		return 8 + g.Int64N(8)
	default:
		return pick(g, oddNumbers)
	}
}

// leaseID returns the id of a lease that may exist or not.
func (g *generator) leaseID() int64 {
	switch n := g.IntN(20); {
	case n < 14 && len(g.living) > 0:
		return pick(g, g.living)
	case n < 19:
		return pick(g, givenLeases)
	default:
		return pick(g, oddNumbers)
	}
}

func (g *generator) ttl() int64 {
	switch n := g.IntN(20); {
	case n < 14:
		return longTTL + g.Int64N(1000)
	case n < 16:
		return maxLeaseTTL
	case n < 17:
		return maxLeaseTTL + 1
	default:
		return pick(g, oddNumbers)
	}
}

func (g *generator) rangeRequest() *pb.RangeRequest {
	r := &pb.RangeRequest{Key: g.key()}
	r.RangeEnd = g.rangeEnd(r.Key)
	r.Serializable = g.one(4)
	if g.one(2) {
		r.Limit = g.limit()
	}
	if g.one(3) {
		r.Revision = g.revision()
	}
	if g.one(3) {
		r.SortOrder = pb.RangeRequest_SortOrder(g.IntN(3))
		r.SortTarget = pb.RangeRequest_SortTarget(g.IntN(5))
	}
	if g.one(40) {
		r.SortOrder = pick(g, []pb.RangeRequest_SortOrder{3, -1, math.MaxInt32})
	}
	if g.one(40) {
		r.SortTarget = pick(g, []pb.RangeRequest_SortTarget{5, -1, math.MinInt32})
	}
	r.KeysOnly, r.CountOnly = g.one(6), g.one(8)
	for _, f := range []*int64{&r.MinModRevision, &r.MaxModRevision, &r.MinCreateRevision, &r.MaxCreateRevision} {
		if g.one(12) {
			*f = g.revision()
		}
	}
	return r
}

func (g *generator) putRequest() *pb.PutRequest {
	r := &pb.PutRequest{Key: g.key(), Value: g.value(), PrevKv: g.one(3)}
	switch g.IntN(20) {
	case 0:
		r.IgnoreValue = true
		if !g.one(5) {
			r.Value = nil
		}
	case 1:
		r.IgnoreLease = true
	case 2:
		r.IgnoreValue, r.IgnoreLease, r.Value = true, true, nil
	case 3, 4, 5, 6:
		r.Lease = g.leaseID()
	case 7:
		r.IgnoreLease = g.one(3)
		r.IgnoreValue = g.one(3)
		r.Lease = g.leaseID()
	}
	return r
}

func (g *generator) deleteRequest() *pb.DeleteRangeRequest {
	r := &pb.DeleteRangeRequest{Key: g.key(), PrevKv: g.one(2)}
	if g.one(3) {
		r.RangeEnd = g.rangeEnd(r.Key)
	}
	return r
}

// compare returns a condition of a transaction.
func (g *generator) compare() *pb.Compare {
	c := &pb.Compare{
		Key:    g.key(),
		Result: pb.Compare_CompareResult(g.IntN(4)),
		Target: pb.Compare_CompareTarget(g.IntN(5)),
	}
	if g.one(4) {
		c.RangeEnd = g.rangeEnd(c.Key)
	}
	target := c.Target
	switch {
	case g.one(40):
		c.Target = pick(g, []pb.Compare_CompareTarget{5, -1})
	case g.one(40):
		c.Result = pick(g, []pb.Compare_CompareResult{4, -1})
	case g.one(30):
		target = pb.Compare_CompareTarget(g.IntN(5)) // of another kind than it says
	case g.one(40):
		return c // nothing to compare with
	}
	switch target {
	case pb.Compare_VERSION:
		c.TargetUnion = &pb.Compare_Version{Version: pick(g, []int64{0, 0, 1, 1, 2, 3, -1, math.MaxInt64})}
	case pb.Compare_CREATE:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: g.comparedRevision()}
	case pb.Compare_MOD:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: g.comparedRevision()}
	case pb.Compare_VALUE:
		c.TargetUnion = &pb.Compare_Value{Value: g.value()}
	case pb.Compare_LEASE:
		id := pick(g, []int64{0, 0, 1, 2, -1, math.MinInt64, math.MaxInt64})
		if len(g.picked) > 0 && g.one(2) {
			// Which of two picked ids is greater differs between servers.
			id = pick(g, g.picked)
			c.Result = pick(g, []pb.Compare_CompareResult{pb.Compare_EQUAL, pb.Compare_NOT_EQUAL})
		}
		c.TargetUnion = &pb.Compare_Lease{Lease: id}
	}
	return c
}

func (g *generator) comparedRevision() int64 {
	if g.one(2) {
		return 0
	}
	return g.revision()
}

// transaction returns a transaction of a few levels, now and then one that needs no more
// than a shard.
func (g *generator) transaction() *pb.TxnRequest {
	const depth = 3
	readOnly := g.one(5)
	if len(g.layout.splits) > 0 && g.one(5) {
		g.home = g.IntN(len(g.layout.shards))
		defer func() { g.home = -1 }()
	}
	return harmless(g.txnRequest(depth, readOnly))
}

// txnRequest returns a transaction of at most depth levels.
func (g *generator) txnRequest(depth int, readOnly bool) *pb.TxnRequest {
	r := &pb.TxnRequest{}
	for range g.IntN(4) {
		r.Compare = append(r.Compare, g.compare())
	}
	r.Success = g.branch(depth, readOnly)
	r.Failure = g.branch(depth, readOnly)
	if g.one(50) {
		g.overload(r, depth)
	}
	return r
}

// harmless keeps a transaction from stopping etcd for good, which panics where a
// put is to keep what its own transaction has deleted before. Only a deletion
// "from key on" gets past the check for such overlaps.
func harmless(r *pb.TxnRequest) *pb.TxnRequest {
	var puts []*pb.PutRequest
	deletes := false
	eachMessage(r, func(m proto.Message) {
		switch m := m.(type) {
		case *pb.PutRequest:
			puts = append(puts, m)
		case *pb.DeleteRangeRequest:
			deletes = deletes || bytes.Equal(m.GetRangeEnd(), []byte{0})
		}
	})
	for _, p := range puts {
		if deletes {
			p.IgnoreValue, p.IgnoreLease = false, false
		}
	}
	return r
}

func (g *generator) branch(depth int, readOnly bool) []*pb.RequestOp {
	var ops []*pb.RequestOp
	// Most branches put each key once, so that they are accepted.
	keys := slices.Clone(g.keys())
	g.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for i := range g.IntN(5) {
		ops = append(ops, g.operation(depth, readOnly, keys[i]))
	}
	return ops
}

func (g *generator) operation(depth int, readOnly bool, key []byte) *pb.RequestOp {
	n := g.IntN(20)
	if readOnly {
		n = 0
	}
	switch {
	case n < 6:
		r := g.rangeRequest()
		if !g.one(8) {
			r.Revision = 0
		}
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
	case n < 12:
		r := g.putRequest()
		if !g.one(8) {
			r.Key = key
		}
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r}}
	case n < 16:
		r := g.deleteRequest()
		if !g.one(3) {
			r.Key, r.RangeEnd = key, nil
		}
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}
	case n < 19 && depth > 1:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: g.txnRequest(depth-1, g.one(5))}}
	case n == 19 && g.one(4):
		return &pb.RequestOp{}
	default:
		r := g.putRequest()
		r.Key, r.Lease, r.IgnoreLease, r.IgnoreValue = key, 0, false, false
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r}}
	}
}

// overload brings a transaction to its limit of operations, or beyond it.
func (g *generator) overload(r *pb.TxnRequest, depth int) {
	n := maxTxnOps - 2 + g.IntN(4)
	key := g.keys()[0]
	get := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key}}}
	switch g.IntN(3) {
	case 0:
		for len(r.Success) < n {
			r.Success = append(r.Success, get)
		}
	case 1:
		for len(r.Compare) < n {
			r.Compare = append(r.Compare, &pb.Compare{Key: key})
		}
	default:
		for len(r.Failure) < n {
			r.Failure = append(r.Failure, get)
		}
	}
	if depth > 1 {
		nested := &pb.TxnRequest{Success: slices.Repeat([]*pb.RequestOp{get}, g.IntN(3))}
		r.Success = append(r.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: nested}})
	}
}

// largePut returns a put whose size is about the limit of requests, or what gRPC
// accepts beyond it.
func (g *generator) largePut() *pb.PutRequest {
	r := &pb.PutRequest{Key: pick(g, g.keys())}
	limit := maxRequestBytes
	if g.one(5) {
		limit += 512 << 10
	}
	// The log's envelope takes some twenty bytes; gRPC counts the message alone.
	r.Value = bytes.Repeat([]byte{'x'}, limit-len(r.Key)-g.IntN(48))
	for proto.Size(r) > limit+8 {
		r.Value = r.Value[:len(r.Value)-1]
	}
	return r
}

// fatTxn returns a transaction about the given keys whose events, with the values
// before, are larger than what a watch gets in one piece.
func fatTxn(keys [][]byte) *pb.TxnRequest {
	r := &pb.TxnRequest{}
	for _, key := range keys {
		r.Success = append(r.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{
			Key: key, Value: []byte(strings.Repeat("y", 400<<10)),
		}}})
	}
	return r
}

func (g *generator) watchRequest() *pb.WatchCreateRequest {
	r := &pb.WatchCreateRequest{Key: g.key(), PrevKv: g.one(2), Fragment: g.one(3), ProgressNotify: g.one(4)}
	r.RangeEnd = g.rangeEnd(r.Key)
	switch n := g.IntN(20); {
	case n < 11:
	case n < 14:
		r.StartRevision = g.revision()
	case n < 16:
		r.StartRevision = g.rev + 1 + g.Int64N(20)
	case n < 17:
		r.StartRevision = max(1, g.compact-g.Int64N(3))
	case n < 18:
		r.StartRevision = pick(g, oddNumbers)
	default:
		r.StartRevision = max(1, g.rev-g.Int64N(10))
	}
	switch g.IntN(12) {
	case 0:
		r.Filters = []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}
	case 1:
		r.Filters = []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NODELETE}
	case 2:
		r.Filters = []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NODELETE, pb.WatchCreateRequest_NOPUT}
	case 3:
		r.Filters = []pb.WatchCreateRequest_FilterType{7, -1}
	}
	if g.one(2) {
		r.WatchId = g.watchID()
	}
	if r.WatchId == -1 {
		// Its notices would look like answers to requests for progress.
		r.ProgressNotify = false
	}
	return r
}

// watchID returns an id that a client might choose for a watch.
func (g *generator) watchID() int64 {
	return pick(g, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, -1, -2, math.MaxInt64, math.MinInt64})
}
