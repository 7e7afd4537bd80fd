package differential

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
	"google.golang.org/protobuf/proto"
)

// lie falsifies one answer of a server. It tells whether it could.
type lie struct {
	name string
	tell func(answer any) bool
	// shards says that it is also told of a server of several shards, alone that it is
	// told of no other.
	shards, alone bool
	// split, if not nil, takes something off an answer, which follows by itself.
	split func(answer any) (rest *pb.WatchResponse)
}

// lies are small untruths that a differential run must see.
var lies = []lie{
	{name: "a range counts one more", shards: true, tell: func(a any) bool {
		r, ok := a.(*pb.RangeResponse)
		if ok {
			r.Count++
		}
		return ok
	}},
	{name: "a range says more", tell: func(a any) bool {
		r, ok := a.(*pb.RangeResponse)
		if ok {
			r.More = !r.More
		}
		return ok
	}},
	{name: "a range swaps two keys", tell: func(a any) bool {
		r, ok := a.(*pb.RangeResponse)
		if ok = ok && len(r.GetKvs()) == 2; ok {
			slices.Reverse(r.Kvs)
		}
		return ok
	}},
	{name: "a header names another member", tell: func(a any) bool {
		r, ok := a.(*pb.PutResponse)
		if ok {
			r.Header.MemberId++
		}
		return ok
	}},
	{name: "a put has no previous value", tell: func(a any) bool {
		r, ok := a.(*pb.PutResponse)
		if ok = ok && r.GetPrevKv() != nil; ok {
			r.PrevKv = nil
		}
		return ok
	}},
	{name: "a nested answer has a revision", tell: func(a any) bool {
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
	{name: "a lease has less time", tell: func(a any) bool {
		r, ok := a.(*pb.LeaseTimeToLiveResponse)
		if ok = ok && r.GetTTL() > 0; ok {
			r.TTL -= 1000
		}
		return ok
	}},
	{name: "a lease holds no key", tell: func(a any) bool {
		r, ok := a.(*pb.LeaseTimeToLiveResponse)
		if ok = ok && len(r.GetKeys()) > 0; ok {
			r.Keys = r.Keys[1:]
		}
		return ok
	}},
	{name: "a keepalive is short", tell: func(a any) bool {
		r, ok := a.(*pb.LeaseKeepAliveResponse)
		if ok = ok && r.GetTTL() > 0; ok {
			r.TTL--
		}
		return ok
	}},
	{name: "an error has another text", tell: func(a any) bool {
		s, ok := a.(*status.Status)
		if ok {
			*s = *status.New(s.Code(), s.Message()+".")
		}
		return ok
	}},
	{name: "an error has another code", tell: func(a any) bool {
		s, ok := a.(*status.Status)
		if ok {
			*s = *status.New(codes.Aborted, s.Message())
		}
		return ok
	}},
	{name: "a watch starts a revision later", shards: true, tell: watchLie(func(r *pb.WatchResponse) bool { return r.GetCreated() }, func(r *pb.WatchResponse) {
		r.Header.Revision++
	})},
	{name: "a watch gets the head of another revision", shards: true, tell: watchLie(hasEvents, func(r *pb.WatchResponse) { r.Header.Revision-- })},
	{name: "a watch loses an event", shards: true, tell: watchLie(hasEvents, func(r *pb.WatchResponse) { r.Events = r.Events[1:] })},
	{name: "a watch gets an event twice", shards: true, tell: watchLie(hasEvents, func(r *pb.WatchResponse) { r.Events = append(r.Events, r.Events[0]) })},
	{name: "a watch gets events backwards", shards: true, tell: watchLie(func(r *pb.WatchResponse) bool { return len(r.GetEvents()) > 1 }, func(r *pb.WatchResponse) {
		slices.Reverse(r.Events)
	})},
	{name: "a watch gets a deletion for a put", tell: watchLie(hasEvents, func(r *pb.WatchResponse) { r.Events[0].Type = 1 - r.Events[0].Type })},
	{name: "a watch gets no previous value", tell: watchLie(func(r *pb.WatchResponse) bool {
		return slices.ContainsFunc(r.GetEvents(), func(e *mvccpb.Event) bool { return e.GetPrevKv() != nil })
	}, func(r *pb.WatchResponse) {
		for _, e := range r.Events {
			e.PrevKv = nil
		}
	})},
	{name: "progress is behind", shards: true, tell: watchLie(func(r *pb.WatchResponse) bool {
		return r.GetWatchId() == -1 && !r.GetCreated() && !r.GetCanceled()
	}, func(r *pb.WatchResponse) { r.Header.Revision-- })},
	{name: "a refused watch has no reason", tell: watchLie(func(r *pb.WatchResponse) bool { return r.GetCancelReason() != "" }, func(r *pb.WatchResponse) {
		r.CancelReason = ""
	})},
	{name: "a watch gets a revision in two parts", shards: true, split: func(a any) *pb.WatchResponse {
		r, ok := a.(*pb.WatchResponse)
		if n := len(r.GetEvents()); !ok || n < 2 || r.GetEvents()[0].GetKv().GetModRevision() != r.GetEvents()[n-1].GetKv().GetModRevision() {
			return nil
		}
		rest := proto.CloneOf(r)
		rest.Events, r.Events = rest.Events[1:], r.Events[:1]
		return rest
	}},
	{name: "a put is said to have another revision", alone: true, tell: func(a any) bool {
		r, ok := a.(*pb.PutResponse)
		if ok {
			r.Header.Revision++
		}
		return ok
	}},
	{name: "a range is of an older revision", alone: true, tell: func(a any) bool {
		r, ok := a.(*pb.RangeResponse)
		if ok {
			r.Header.Revision--
		}
		return ok
	}},
	{name: "a key was created in a gap", alone: true, tell: func(a any) bool {
		r, ok := a.(*pb.RangeResponse)
		if ok = ok && len(r.GetKvs()) > 0; ok {
			r.Kvs[0].CreateRevision--
		}
		return ok
	}},
	{name: "a change has two revisions", alone: true, tell: watchLie(func(r *pb.WatchResponse) bool { return len(r.GetEvents()) > 1 }, func(r *pb.WatchResponse) {
		kv := r.Events[len(r.Events)-1].Kv
		kv.ModRevision++
		r.Header.Revision = max(r.Header.Revision, kv.ModRevision)
	})},
	{name: "a watch ends by another compaction", alone: true, tell: watchLie(func(r *pb.WatchResponse) bool { return r.GetCompactRevision() > 0 }, func(r *pb.WatchResponse) {
		r.CompactRevision++
	})},
	{name: "a lease's call shows an old revision", alone: true, tell: func(a any) bool {
		r, ok := a.(*pb.LeaseGrantResponse)
		if ok {
			r.Header.Revision -= 2
		}
		return ok
	}},
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
		l.told.Store(l.lie.tell != nil && l.lie.tell(reply))
		return nil
	}
	s := status.Convert(err)
	if l.lie.tell == nil || !l.lie.tell(s) {
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
	// rest is what is still to come of the last answer.
	rest *pb.WatchResponse
}

// RecvMsg receives a message, not always the truth. The ends of streams are true.
func (s *lyingStream) RecvMsg(m any) error {
	if r, ok := m.(*pb.WatchResponse); ok && s.rest != nil {
		proto.Merge(r, s.rest)
		s.rest = nil
		return nil
	}
	err := s.ClientStream.RecvMsg(m)
	if err != nil {
		return err
	}
	if l := s.liar; l.lie.split != nil && l.armed.Load() && !l.told.Load() {
		s.rest = l.lie.split(m)
		l.told.Store(s.rest != nil)
		return nil
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
	var told []lie
	for _, l := range lies {
		if !l.alone {
			told = append(told, l)
		}
	}
	seesLies(t, startEtcd(t, "etcd"), startEtcd(t, "lying etcd"), told)
}

// TestDifferentialSeesShards runs etcd against a Latchkey of several shards whose
// answers are falsified.
func TestDifferentialSeesShards(t *testing.T) {
	var told []lie
	for _, l := range lies {
		if l.shards || l.alone {
			told = append(told, l)
		}
	}
	seesLies(t, startEtcd(t, "etcd"), startShards(t, newLayout(defaultShards), 1), told)
}

// seesLies tells each lie of the second server in a run of its own.
func seesLies(t *testing.T, first, second *server, lies []lie) {
	t.Helper()
	base := setting(t, seedVariable, 1)
	for i, lie := range lies {
		t.Run(lie.name, func(t *testing.T) {
			l := &liar{lie: lie}
			liar := dial(t, "lying "+second.name, second.address, grpc.WithUnaryInterceptor(l.unary), grpc.WithStreamInterceptor(l.stream))
			liar.order = second.order
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
	var revisions [2]int64
	for i, s := range d.servers {
		d.tidy(s)
		head, err := s.kv.Range(d.t.Context(), &pb.RangeRequest{Key: []byte{0}})
		if err != nil {
			d.fatal("ask for the revision: %v", err)
		}
		revisions[i] = head.GetHeader().GetRevision()
	}
	d.gen.rev = revisions[0]
	if s := d.servers[1]; s.order != nil {
		s.order = newOrder(s.order.layout, uint64(revisions[0]), revisions[1], revisions[0])
	}
	d.openStreams()
	d.put(&pb.PutRequest{Key: []byte("a"), Value: []byte("v0")})
	d.compactAt(&pb.CompactionRequest{Revision: d.gen.rev})
}

// tidy ends the alarms and leases that a run has left and, where revisions differ,
// deletes its keys.
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
	if d.servers[1].order != nil {
		for i := range d.gen.layout.shards {
			key, end := d.gen.layout.span(i)
			if _, err := s.kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: key, RangeEnd: end}); err != nil {
				d.fatal("delete keys: %v", err)
			}
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
