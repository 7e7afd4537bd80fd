package differential

import (
	"fmt"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
)

// answer is what a server answered: a message or an error.
type answer struct {
	msg proto.Message
	err *status.Status
	// chunks are the sizes of the pieces that a streamed answer came in.
	chunks []int
}

func answered(msg proto.Message, err error) answer {
	if err != nil {
		return answer{err: status.Convert(err)}
	}
	return answer{msg: msg}
}

// message returns what is compared.
func (a answer) message() proto.Message {
	if a.err != nil {
		return a.err.Proto()
	}
	return a.msg
}

func (a answer) String() string {
	if a.err != nil {
		return fmt.Sprintf("%s: %s", a.err.Code(), a.err.Message())
	}
	return fmt.Sprint(a.msg)
}

// diff shows in what two messages differ; it is empty if in nothing.
func diff(a, b proto.Message) string {
	if proto.Equal(a, b) {
		return ""
	}
	return cmp.Diff(a, b, protocmp.Transform())
}

// eachMessage visits m and all messages in it.
func eachMessage(m proto.Message, visit func(proto.Message)) {
	if m == nil || !m.ProtoReflect().IsValid() {
		return
	}
	visit(m)
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				eachMessage(v.List().Get(i).Message().Interface(), visit)
			}
		default:
			eachMessage(v.Message().Interface(), visit)
		}
		return true
	})
}

// eachLeaseID visits all ids of leases in a request or an answer.
func eachLeaseID(m proto.Message, visit func(*int64)) {
	eachMessage(m, func(m proto.Message) {
		switch m := m.(type) {
		case *mvccpb.KeyValue:
			visit(&m.Lease)
		case *pb.PutRequest:
			visit(&m.Lease)
		case *pb.Compare:
			if l, ok := m.TargetUnion.(*pb.Compare_Lease); ok {
				visit(&l.Lease)
			}
		case *pb.LeaseGrantRequest:
			visit(&m.ID)
		case *pb.LeaseGrantResponse:
			visit(&m.ID)
		case *pb.LeaseRevokeRequest:
			visit(&m.ID)
		case *pb.LeaseKeepAliveRequest:
			visit(&m.ID)
		case *pb.LeaseKeepAliveResponse:
			visit(&m.ID)
		case *pb.LeaseTimeToLiveRequest:
			visit(&m.ID)
		case *pb.LeaseTimeToLiveResponse:
			visit(&m.ID)
		case *pb.LeaseStatus:
			visit(&m.ID)
		}
	})
}

// forServer returns the request with the lease ids and revisions that the server
// knows.
func forServer[M proto.Message](s *server, req M) M {
	clone, ok := proto.Clone(req).(M)
	if !ok {
		return req
	}
	eachLeaseID(clone, func(id *int64) {
		if actual, ok := s.actual[*id]; ok {
			*id = actual
		}
	})
	if s.order != nil {
		s.order.ask(clone)
	}
	return clone
}

// eachRange visits the ranges of a request and their answers.
func eachRange(req, resp proto.Message, visit func(*pb.RangeRequest, *pb.RangeResponse)) {
	switch req := req.(type) {
	case *pb.RangeRequest:
		if resp, ok := resp.(*pb.RangeResponse); ok {
			visit(req, resp)
		}
	case *pb.TxnRequest:
		resp, ok := resp.(*pb.TxnResponse)
		if !ok {
			return
		}
		ops := req.GetSuccess()
		if !resp.GetSucceeded() {
			ops = req.GetFailure()
		}
		for i, op := range ops {
			if i >= len(resp.GetResponses()) {
				return
			}
			r := resp.GetResponses()[i]
			if op.GetRequestRange() != nil && r.GetResponseRange() != nil {
				eachRange(op.GetRequestRange(), r.GetResponseRange(), visit)
			}
			if op.GetRequestTxn() != nil && r.GetResponseTxn() != nil {
				eachRange(op.GetRequestTxn(), r.GetResponseTxn(), visit)
			}
		}
	}
}
