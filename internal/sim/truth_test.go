package sim

import (
	"bytes"
	"fmt"
	"slices"
	"sort"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// truth is the complete history of events: what every answer is held against.
type truth struct {
	// events by revision, and the revisions in order.
	events map[int64][]*mvccpb.Event
	revs   []int64
	// versions of each key, oldest first; names are the keys in order.
	versions map[string][]version
	names    []string
}

// version is what a key was from a revision on; kv is nil while it did not exist.
type version struct {
	rev int64
	kv  *mvccpb.KeyValue
}

// newTruth takes the events of all keys from the first on. Its error says what of them
// no single store could have produced.
func newTruth(events []*mvccpb.Event) (*truth, error) {
	t := &truth{events: make(map[int64][]*mvccpb.Event), versions: make(map[string][]version)}
	newest := make(map[string]int64)
	last := int64(0)
	for _, e := range events {
		rev, key := e.Kv.ModRevision, string(e.Kv.Key)
		if rev < last {
			return nil, fmt.Errorf("event at %d after one at %d", rev, last)
		}
		last = rev
		before := t.at(key, rev-1)
		if v := t.versions[key]; len(v) > 0 && v[len(v)-1].rev == rev {
			return nil, fmt.Errorf("%s changes twice at %d", key, rev)
		}
		next := version{rev: rev}
		switch {
		case e.Type == mvccpb.Event_DELETE && before == nil:
			return nil, fmt.Errorf("%s is deleted at %d and did not exist", key, rev)
		case e.Type == mvccpb.Event_DELETE:
		case before == nil && (e.Kv.Version != 1 || e.Kv.CreateRevision != rev || rev <= newest[key]):
			return nil, fmt.Errorf("%s is created at %d as %v; the last one was created at %d", key, rev, e.Kv, newest[key])
		case before != nil && (e.Kv.Version != before.Version+1 || e.Kv.CreateRevision != before.CreateRevision):
			return nil, fmt.Errorf("%s changes at %d from %v to %v", key, rev, before, e.Kv)
		default:
			next.kv = e.Kv
			newest[key] = e.Kv.CreateRevision
		}
		if len(t.events[rev]) == 0 {
			t.revs = append(t.revs, rev)
		}
		t.events[rev] = append(t.events[rev], e)
		if t.versions[key] == nil {
			t.names = append(t.names, key)
		}
		t.versions[key] = append(t.versions[key], next)
	}
	slices.Sort(t.names)
	return t, nil
}

// at returns a key as it was at a revision, nil if it did not exist.
func (t *truth) at(key string, rev int64) *mvccpb.KeyValue {
	v := t.versions[key]
	i := sort.Search(len(v), func(i int) bool { return v[i].rev > rev })
	if i == 0 {
		return nil
	}
	return v[i-1].kv
}

// in returns the keys that existed in a range at a revision.
func (t *truth) in(key, end []byte, rev int64) []*mvccpb.KeyValue {
	span := keys.FromRange(key, end)
	var all []*mvccpb.KeyValue
	first := sort.SearchStrings(t.names, string(span.Start))
	for _, name := range t.names[first:] {
		if !span.Contains([]byte(name)) {
			break
		}
		if kv := t.at(name, rev); kv != nil {
			all = append(all, kv)
		}
	}
	return all
}

// answer returns what a range request is answered at a revision, without the header.
func (t *truth) answer(req *pb.RangeRequest, rev int64) *pb.RangeResponse {
	if req.Revision > 0 {
		rev = req.Revision
	}
	kvs := t.in(req.Key, req.RangeEnd, rev)
	resp := &pb.RangeResponse{Count: int64(len(kvs))}
	if req.CountOnly {
		return resp
	}
	if n := int(req.Limit); n > 0 && len(kvs) > n {
		kvs, resp.More = kvs[:n], true
	}
	resp.Kvs = kvs
	return resp
}

// change is one expected event.
type change struct {
	deletes    bool
	key, value string
	lease      int64
}

func changesOf(events []*mvccpb.Event) []change {
	var all []change
	for _, e := range events {
		c := change{deletes: e.Type == mvccpb.Event_DELETE, key: string(e.Kv.Key)}
		if !c.deletes {
			c.value, c.lease = string(e.Kv.Value), e.Kv.Lease
		}
		all = append(all, c)
	}
	return all
}

// effect returns the changes that a write makes at revision rev, and what it answers,
// without headers. Operations of a transaction concern different keys.
func (t *truth) effect(req proto.Message, rev int64) ([]change, proto.Message) {
	switch r := req.(type) {
	case *pb.PutRequest:
		return []change{{key: string(r.Key), value: string(r.Value), lease: r.Lease}}, &pb.PutResponse{}
	case *pb.DeleteRangeRequest:
		var gone []change
		for _, kv := range t.in(r.Key, r.RangeEnd, rev-1) {
			gone = append(gone, change{deletes: true, key: string(kv.Key)})
		}
		return gone, &pb.DeleteRangeResponse{Deleted: int64(len(gone))}
	case *pb.RangeRequest:
		return nil, t.answer(r, rev-1)
	case *pb.TxnRequest:
		resp := &pb.TxnResponse{Succeeded: t.hold(r.Compare, rev-1)}
		ops := r.Success
		if !resp.Succeeded {
			ops = r.Failure
		}
		var all []change
		for _, op := range ops {
			changes, answer := t.effect(inner(op), rev)
			all = append(all, changes...)
			resp.Responses = append(resp.Responses, wrapped(answer))
		}
		return all, resp
	default:
		panic(fmt.Sprintf("effect of %T", req))
	}
}

func inner(op *pb.RequestOp) proto.Message {
	switch o := op.Request.(type) {
	case *pb.RequestOp_RequestPut:
		return o.RequestPut
	case *pb.RequestOp_RequestDeleteRange:
		return o.RequestDeleteRange
	case *pb.RequestOp_RequestRange:
		return o.RequestRange
	default:
		panic(fmt.Sprintf("operation %T", op.Request))
	}
}

func wrapped(answer proto.Message) *pb.ResponseOp {
	switch a := answer.(type) {
	case *pb.PutResponse:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: a}}
	case *pb.DeleteRangeResponse:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: a}}
	case *pb.RangeResponse:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: a}}
	default:
		panic(fmt.Sprintf("answer %T", answer))
	}
}

// hold reports whether all compares hold at a revision.
func (t *truth) hold(compares []*pb.Compare, rev int64) bool {
	for _, c := range compares {
		kv := t.at(string(c.Key), rev)
		if kv == nil {
			if c.Target == pb.Compare_VALUE {
				return false
			}
			kv = &mvccpb.KeyValue{}
		}
		var diff int
		switch c.Target {
		case pb.Compare_VALUE:
			diff = bytes.Compare(kv.Value, c.GetValue())
		case pb.Compare_MOD:
			diff = sign(kv.ModRevision - c.GetModRevision())
		case pb.Compare_CREATE:
			diff = sign(kv.CreateRevision - c.GetCreateRevision())
		case pb.Compare_VERSION:
			diff = sign(kv.Version - c.GetVersion())
		case pb.Compare_LEASE:
			diff = sign(kv.Lease - c.GetLease())
		}
		holds := map[pb.Compare_CompareResult]bool{
			pb.Compare_EQUAL: diff == 0, pb.Compare_NOT_EQUAL: diff != 0, pb.Compare_GREATER: diff > 0, pb.Compare_LESS: diff < 0,
		}
		if !holds[c.Result] {
			return false
		}
	}
	return true
}

func sign(n int64) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	default:
		return 0
	}
}

// bare returns an answer without its headers, which is all that truth knows.
func bare(answer proto.Message) proto.Message {
	answer = proto.Clone(answer)
	switch a := answer.(type) {
	case *pb.PutResponse:
		a.Header = nil
	case *pb.DeleteRangeResponse:
		a.Header = nil
	case *pb.RangeResponse:
		a.Header = nil
	case *pb.TxnResponse:
		a.Header = nil
		for i, r := range a.Responses {
			switch o := r.Response.(type) {
			case *pb.ResponseOp_ResponsePut:
				a.Responses[i] = wrapped(bare(o.ResponsePut))
			case *pb.ResponseOp_ResponseDeleteRange:
				a.Responses[i] = wrapped(bare(o.ResponseDeleteRange))
			case *pb.ResponseOp_ResponseRange:
				a.Responses[i] = wrapped(bare(o.ResponseRange))
			}
		}
	}
	return answer
}

// short prints a message on one line.
func short(m proto.Message) string {
	return strings.Join(strings.Fields(fmt.Sprint(m)), " ")
}
