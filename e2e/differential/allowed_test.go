package differential

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"sort"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// difference names an allowed difference between the servers.
type difference string

const (
	diffIDs          difference = "cluster and member ids"
	diffTerm         difference = "raft term"
	diffPickedLease  difference = "lease ids picked by the server"
	diffRemainingTTL difference = "remaining time to live"
	diffStatus       difference = "sizes and indexes in Status"
	diffHash         difference = "hash values"
	diffCompactHash  difference = "HashKV at the revisions of the last compactions"
	diffLeaseOrder   difference = "order of leases and of a lease's keys"
	diffSortTies     difference = "order of what sorts equal"
	diffChunks       difference = "chunk borders of RangeStream"
	diffStreamSort   difference = "RangeStream sorted by other than keys"
	diffGrouping     difference = "grouping of catch-up events"
	diffExpired      difference = "revocation of a short lease on a slow machine"
	diffNotices      difference = "times of periodic progress notices"
	diffLag          difference = "headers of lease, alarm and auth calls"
)

// allowance is an allowed difference. Everything that no allowance covers must be
// equal to the last field.
type allowance struct {
	name   difference
	reason string
	// mask replaces what may differ in an answer, and returns what it replaced; nil
	// for differences that are allowed elsewhere, where streams are compared. What
	// is impossible even so is left, to be seen as a difference.
	mask func(m *masked) string
}

// masked is an answer that is being masked.
type masked struct {
	server *server
	req    proto.Message
	msg    proto.Message
	// granted tells the TTL that was granted to a lease, ran for how many seconds
	// the test has been running.
	granted func(id int64) int64
	ran     int64
}

var allowances = []allowance{
	{diffIDs, "each cluster draws its own", maskIDs},
	{diffTerm, "elections are each server's own business", maskTerm},
	{diffPickedLease, "each server draws its own; they are mapped onto each other", maskPicked},
	{diffRemainingTTL, "the servers read their clocks at different moments", maskTTL},
	{diffStatus, "storage engines and logs are not the same", maskStatus},
	{diffHash, "the hashed bytes are those of the storage engine", maskHash},
	{diffCompactHash, "etcd keeps the hashes that its last compactions made and answers with them, even if that history is gone", nil},
	{diffLeaseOrder, "etcd lists leases by their end and keys as its map has them", maskLeaseOrder},
	{diffSortTies, "etcd's sort is not stable for more than 12 keys", maskTies},
	{diffChunks, "a chunk's size follows the encoded size of the chunk before", nil},
	{diffStreamSort, "etcd sorts each chunk by itself, so that the order follows the chunk borders and keys repeat", nil},
	{diffGrouping, "etcd catches up in rounds of 100 ms; what comes live meanwhile joins them", nil},
	{diffExpired, "a lease of two seconds may have expired when the machine stalls for as long", nil},
	{diffNotices, "the servers' timers run by themselves", nil},
	{diffLag, "with several shards they carry a revision that was issued, and none below what was shown", nil},
}

// stableSort is the number of elements up to which Go's sort, which etcd uses,
// keeps the order of what is equal.
const stableSort = 12

// ledger counts how often an allowed difference was met.
type ledger map[difference]int

func (l ledger) print(w io.Writer) {
	for _, a := range allowances {
		fmt.Fprintf(w, "%8d  %s: %s\n", l[a.name], a.name, a.reason)
	}
}

// mask applies the allowances to the answers of both servers to one request.
func (l ledger) mask(a, b *masked) {
	for _, d := range allowances {
		if d.mask != nil && d.mask(a) != d.mask(b) {
			l[d.name]++
		}
	}
}

// headers returns the headers in m, which need not be complete.
func headers(m proto.Message) []*pb.ResponseHeader {
	var found []*pb.ResponseHeader
	eachMessage(m, func(m proto.Message) {
		if h, ok := m.(*pb.ResponseHeader); ok {
			found = append(found, h)
		}
	})
	return found
}

// own masks an id that must be the given one where it is set.
func own(id *uint64, want uint64) string {
	if *id != want {
		return ""
	}
	*id = 1
	return fmt.Sprint(want)
}

func maskIDs(m *masked) string {
	var was string
	for _, h := range headers(m.msg) {
		was += own(&h.ClusterId, m.server.clusterID) + own(&h.MemberId, m.server.memberID)
	}
	switch r := m.msg.(type) {
	case *pb.StatusResponse:
		was += own(&r.Leader, m.server.memberID)
	case *pb.MemberListResponse:
		for _, member := range r.GetMembers() {
			was += own(&member.ID, m.server.memberID)
		}
	}
	return was
}

func maskTerm(m *masked) string {
	var was string
	for _, h := range headers(m.msg) {
		was += own(&h.RaftTerm, h.GetRaftTerm())
	}
	if r, ok := m.msg.(*pb.StatusResponse); ok {
		was += own(&r.RaftTerm, r.GetRaftTerm())
	}
	return was
}

func maskPicked(m *masked) string {
	var was string
	eachLeaseID(m.msg, func(id *int64) {
		if logical, ok := m.server.logical[*id]; ok {
			was += fmt.Sprint(*id, " ")
			*id = logical
		}
	})
	return was
}

func maskTTL(m *masked) string {
	r, ok := m.msg.(*pb.LeaseTimeToLiveResponse)
	if !ok {
		return ""
	}
	ttl, granted := r.GetTTL(), r.GetGrantedTTL()
	const grace = 2 // seconds between two clocks being read, and rounding
	if granted != m.granted(r.GetID()) || ttl > granted || ttl < granted-m.ran-grace {
		return ""
	}
	r.TTL = granted
	return fmt.Sprint(ttl)
}

func maskStatus(m *masked) string {
	r, ok := m.msg.(*pb.StatusResponse)
	if !ok || r.GetDbSize() < r.GetDbSizeInUse() || r.GetRaftIndex() < r.GetRaftAppliedIndex() {
		return ""
	}
	var was string
	for _, n := range []*int64{&r.DbSize, &r.DbSizeInUse} {
		if *n >= 0 {
			was += fmt.Sprint(*n, " ")
			*n = 1
		}
	}
	return was + own(&r.RaftIndex, max(1, r.GetRaftIndex())) + own(&r.RaftAppliedIndex, max(1, r.GetRaftAppliedIndex()))
}

func maskHash(m *masked) string {
	var hash uint32
	switch r := m.msg.(type) {
	case *pb.HashResponse:
		hash, r.Hash = r.GetHash(), 0
	case *pb.HashKVResponse:
		hash, r.Hash = r.GetHash(), 0
	}
	return fmt.Sprint(hash)
}

func maskLeaseOrder(m *masked) string {
	switch r := m.msg.(type) {
	case *pb.LeaseTimeToLiveResponse:
		was := fmt.Sprintf("%q", r.GetKeys())
		slices.SortFunc(r.Keys, bytes.Compare)
		return was
	case *pb.LeaseLeasesResponse:
		was := fmt.Sprint(r.GetLeases())
		slices.SortFunc(r.Leases, func(a, b *pb.LeaseStatus) int { return cmp.Compare(a.GetID(), b.GetID()) })
		return was
	default:
		return ""
	}
}

func maskTies(m *masked) string {
	var was string
	eachRange(m.req, m.msg, func(req *pb.RangeRequest, resp *pb.RangeResponse) {
		byKey := req.GetSortTarget() == pb.RangeRequest_KEY
		if resp.GetCount() <= stableSort || byKey {
			return
		}
		was += settleTies(req, resp)
	})
	return was
}

// settleTies orders what sorts equal by key, and strips those of which a limit
// may have taken others, and returns how it was. Even where no order is asked for,
// etcd sorts one more key than the limit lets through.
func settleTies(req *pb.RangeRequest, resp *pb.RangeResponse) string {
	kvs := resp.Kvs
	var was string
	// Values are not in an answer of keys only: all may have been equal.
	same := func(a, b *mvccpb.KeyValue) bool {
		return req.GetSortTarget() == pb.RangeRequest_VALUE && req.GetKeysOnly() ||
			compareTargets(req.GetSortTarget(), a, b) == 0
	}
	for i := 0; i < len(kvs); {
		j := i + 1
		for j < len(kvs) && same(kvs[i], kvs[j]) {
			j++
		}
		for _, kv := range kvs[i:j] {
			was += fmt.Sprintf("%q ", kv.GetKey())
		}
		sort.Slice(kvs[i:j], func(x, y int) bool { return bytes.Compare(kvs[i+x].GetKey(), kvs[i+y].GetKey()) < 0 })
		if j == len(kvs) && resp.GetMore() {
			for k := i; k < j; k++ {
				kvs[k] = targetOnly(req.GetSortTarget(), kvs[k])
			}
		}
		i = j
	}
	return was
}

func compareTargets(target pb.RangeRequest_SortTarget, a, b *mvccpb.KeyValue) int {
	switch target {
	case pb.RangeRequest_KEY:
		return bytes.Compare(a.GetKey(), b.GetKey())
	case pb.RangeRequest_VERSION:
		return cmp.Compare(a.GetVersion(), b.GetVersion())
	case pb.RangeRequest_CREATE:
		return cmp.Compare(a.GetCreateRevision(), b.GetCreateRevision())
	case pb.RangeRequest_MOD:
		return cmp.Compare(a.GetModRevision(), b.GetModRevision())
	case pb.RangeRequest_VALUE:
		return bytes.Compare(a.GetValue(), b.GetValue())
	}
	return 0
}

// targetOnly returns a copy of kv that tells nothing but what it was sorted by.
func targetOnly(target pb.RangeRequest_SortTarget, kv *mvccpb.KeyValue) *mvccpb.KeyValue {
	switch target {
	case pb.RangeRequest_KEY:
		return kv
	case pb.RangeRequest_VERSION:
		return &mvccpb.KeyValue{Version: kv.GetVersion()}
	case pb.RangeRequest_CREATE:
		return &mvccpb.KeyValue{CreateRevision: kv.GetCreateRevision()}
	case pb.RangeRequest_MOD:
		return &mvccpb.KeyValue{ModRevision: kv.GetModRevision()}
	case pb.RangeRequest_VALUE:
		return &mvccpb.KeyValue{Value: kv.GetValue()}
	}
	return kv
}
