package e2e

import (
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// lie falsifies one answer of a server. It tells whether it could.
type lie struct {
	name string
	tell func(answer any) bool
}

// lies are small untruths that a differential run must see.
var lies = []lie{
	{"a range counts one more", func(a any) bool {
		r, ok := a.(*pb.RangeResponse)
		if ok {
			r.Count++
		}
		return ok
	}},
	{"a range says more", func(a any) bool {
		r, ok := a.(*pb.RangeResponse)
		if ok {
			r.More = !r.More
		}
		return ok
	}},
	{"a range swaps two keys", func(a any) bool {
		r, ok := a.(*pb.RangeResponse)
		if ok = ok && len(r.GetKvs()) == 2; ok {
			slices.Reverse(r.Kvs)
		}
		return ok
	}},
	{"a header names another member", func(a any) bool {
		r, ok := a.(*pb.PutResponse)
		if ok {
			r.Header.MemberId++
		}
		return ok
	}},
	{"a put has no previous value", func(a any) bool {
		r, ok := a.(*pb.PutResponse)
		if ok = ok && r.GetPrevKv() != nil; ok {
			r.PrevKv = nil
		}
		return ok
	}},
	{"a nested answer has a revision", func(a any) bool {
		r, ok := a.(*pb.TxnResponse)
		if !ok {
			return false
		}
		for _, op := range r.GetResponses() {
			if nested := op.GetResponseTxn(); nested != nil {
				nested.Header = &pb.ResponseHeader{Revision: 1}
				return true
			}
		}
		return false
	}},
	{"a lease has less time", func(a any) bool {
		r, ok := a.(*pb.LeaseTimeToLiveResponse)
		if ok = ok && r.GetTTL() > 0; ok {
			r.TTL -= 1000
		}
		return ok
	}},
	{"a lease holds no key", func(a any) bool {
		r, ok := a.(*pb.LeaseTimeToLiveResponse)
		if ok = ok && len(r.GetKeys()) > 0; ok {
			r.Keys = r.Keys[1:]
		}
		return ok
	}},
	{"a keepalive is short", func(a any) bool {
		r, ok := a.(*pb.LeaseKeepAliveResponse)
		if ok = ok && r.GetTTL() > 0; ok {
			r.TTL--
		}
		return ok
	}},
	{"an error has another text", func(a any) bool {
		s, ok := a.(*status.Status)
		if ok {
			*s = *status.New(s.Code(), s.Message()+".")
		}
		return ok
	}},
	{"an error has another code", func(a any) bool {
		s, ok := a.(*status.Status)
		if ok {
			*s = *status.New(codes.Aborted, s.Message())
		}
		return ok
	}},
	{"a watch starts a revision later", watchLie(func(r *pb.WatchResponse) bool { return r.GetCreated() }, func(r *pb.WatchResponse) {
		r.Header.Revision++
	})},
	{"a watch gets the head of another revision", watchLie(hasEvents, func(r *pb.WatchResponse) { r.Header.Revision-- })},
	{"a watch loses an event", watchLie(hasEvents, func(r *pb.WatchResponse) { r.Events = r.Events[1:] })},
	{"a watch gets an event twice", watchLie(hasEvents, func(r *pb.WatchResponse) { r.Events = append(r.Events, r.Events[0]) })},
	{"a watch gets events backwards", watchLie(func(r *pb.WatchResponse) bool { return len(r.GetEvents()) > 1 }, func(r *pb.WatchResponse) {
		slices.Reverse(r.Events)
	})},
	{"a watch gets a deletion for a put", watchLie(hasEvents, func(r *pb.WatchResponse) { r.Events[0].Type = 1 - r.Events[0].Type })},
	{"a watch gets no previous value", watchLie(func(r *pb.WatchResponse) bool {
		return slices.ContainsFunc(r.GetEvents(), func(e *mvccpb.Event) bool { return e.GetPrevKv() != nil })
	}, func(r *pb.WatchResponse) {
		for _, e := range r.Events {
			e.PrevKv = nil
		}
	})},
	{"progress is behind", watchLie(func(r *pb.WatchResponse) bool {
		return r.GetWatchId() == -1 && !r.GetCreated() && !r.GetCanceled()
	}, func(r *pb.WatchResponse) { r.Header.Revision-- })},
	{"a refused watch has no reason", watchLie(func(r *pb.WatchResponse) bool { return r.GetCancelReason() != "" }, func(r *pb.WatchResponse) {
		r.CancelReason = ""
	})},
}

func hasEvents(r *pb.WatchResponse) bool { return len(r.GetEvents()) > 0 }

func watchLie(fits func(*pb.WatchResponse) bool, falsify func(*pb.WatchResponse)) func(any) bool {
	return func(a any) bool {
		r, ok := a.(*pb.WatchResponse)
		if ok = ok && fits(r); ok {
			falsify(r)
		}
		return ok
	}
}

// liar tells its lie in the first answer that it fits from when it may.
type liar struct {
	lie lie
	// armed is set while the lie is to be told, told once it was.
	armed, told atomic.Bool
}

// falsify changes an answer or an error on its way to the client.
func (l *liar) falsify(reply any, err error) error {
	if !l.armed.Load() || l.told.Load() {
		return err
	}
	if err == nil {
		l.told.Store(l.lie.tell(reply))
		return nil
	}
	s := status.Convert(err)
	if !l.lie.tell(s) {
		return err
	}
	l.told.Store(true)
	return s.Err()
}

func (l *liar) unary(
	ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	return l.falsify(reply, invoke(ctx, method, req, reply, conn, opts...))
}

func (l *liar) stream(
	ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, conn, method, opts...)
	return &lyingStream{ClientStream: s, liar: l}, err
}

type lyingStream struct {
	grpc.ClientStream
	liar *liar
}

// RecvMsg receives a message, not always the truth. The ends of streams are true.
func (s *lyingStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil {
		return err
	}
	return s.liar.falsify(m, nil)
}

// audience hears of the faults that a run reports, instead of the test.
type audience struct {
	testing.TB
	heard atomic.Bool
}

func (a *audience) Errorf(string, ...any) { a.heard.Store(true) }

func (a *audience) FailNow() { runtime.Goexit() }

// TestDifferentialSees runs etcd against an etcd whose answers are falsified in
// one place: each such lie must be reported.
func TestDifferentialSees(t *testing.T) {
	first, second := startEtcd(t, "etcd"), startEtcd(t, "lying etcd")
	base := setting(t, seedVariable, 1)
	for i, lie := range lies {
		t.Run(lie.name, func(t *testing.T) {
			l := &liar{lie: lie}
			liar := dial(t, "lying etcd", second.address, grpc.WithUnaryInterceptor(l.unary), grpc.WithStreamInterceptor(l.stream))
			a := &audience{TB: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				d := newDiffer(a, first, liar, base+uint64(i))
				d.patience = 4 * time.Second
				d.adopt()
				l.armed.Store(true)
				const most = 4000
				for d.step = 1; d.step <= most && !a.heard.Load(); d.step++ {
					d.choose()(d)
				}
			}()
			<-done
			if !l.told.Load() || !a.heard.Load() {
				t.Errorf("told: %v, seen: %v", l.told.Load(), a.heard.Load())
			}
		})
	}
}

// adopt begins with servers that have been used before, with equal content.
func (d *differ) adopt() {
	for _, s := range d.servers {
		d.tidy(s)
	}
	head, err := d.servers[0].kv.Range(d.t.Context(), &pb.RangeRequest{Key: []byte{0}})
	if err != nil {
		d.fatal("ask for the revision: %v", err)
	}
	d.gen.rev = head.GetHeader().GetRevision()
	d.openStreams()
	d.put(&pb.PutRequest{Key: []byte("a"), Value: []byte("v0")})
	d.compactAt(&pb.CompactionRequest{Revision: d.gen.rev})
}

// tidy ends the leases and alarms that a run has left.
func (d *differ) tidy(s *server) {
	ctx := d.t.Context()
	alarms, err := s.maint.Alarm(ctx, &pb.AlarmRequest{})
	if err != nil {
		d.fatal("list alarms: %v", err)
	}
	for _, a := range alarms.GetAlarms() {
		r := &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: a.GetMemberID(), Alarm: a.GetAlarm()}
		if _, err := s.maint.Alarm(ctx, r); err != nil {
			d.fatal("clear alarm: %v", err)
		}
	}
	leases, err := s.lease.LeaseLeases(ctx, &pb.LeaseLeasesRequest{})
	if err != nil {
		d.fatal("list leases: %v", err)
	}
	for _, l := range leases.GetLeases() {
		if _, err := s.lease.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: l.GetID()}); err != nil {
			d.fatal("revoke lease: %v", err)
		}
	}
}
