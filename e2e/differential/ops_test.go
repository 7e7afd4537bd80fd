package differential

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/types/known/emptypb"
)

// operations are what a sequence is made of, with how often each is chosen.
var operations = []struct {
	weight int
	run    func(*differ)
}{
	{220, (*differ).opRange},
	{40, (*differ).opRangeStream},
	{220, (*differ).opPut},
	{70, (*differ).opDelete},
	{180, (*differ).opTxn},
	{9, (*differ).opCompact},
	{2, (*differ).opLarge},
	{40, (*differ).opGrant},
	{20, (*differ).opRevoke},
	{25, (*differ).opKeepAlive},
	{25, (*differ).opTimeToLive},
	{8, (*differ).opLeases},
	{36, (*differ).opWatch},
	{22, (*differ).opCancel},
	{20, (*differ).opProgress},
	{2, (*differ).opEmptyWatchRequest},
	{6, (*differ).opReopen},
	{2, (*differ).opHalfClose},
	{8, (*differ).opHashKV},
	{3, (*differ).opHash},
	{1, (*differ).opDefragment},
	{6, (*differ).opStatus},
	{6, (*differ).opAlarms},
	{5, (*differ).opMembers},
	{2, (*differ).opAlarmed},
	{1, (*differ).opClear},
}

// choose returns an operation at random.
func (d *differ) choose() func(*differ) {
	total := 0
	for _, o := range operations {
		total += o.weight
	}
	n := d.gen.IntN(total)
	for _, o := range operations {
		if n -= o.weight; n < 0 {
			return o.run
		}
	}
	return operations[0].run
}

// run runs a sequence of n operations.
func (d *differ) run(n int) {
	d.prelude()
	for d.step = 1; d.step <= n; d.step++ {
		d.choose()(d)
	}
	d.burst()
	d.settleAll()
}

// burst makes more revisions than a watch is told at once, and watches from
// before them.
func (d *differ) burst() {
	const revisions = 1100
	before := d.gen.rev
	for i := range revisions {
		d.put(&pb.PutRequest{Key: pick(d.gen, d.gen.keys()), Value: []byte{byte(i)}})
	}
	for i, p := range d.streams {
		if p.halfClosed {
			continue
		}
		d.create(p, &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: before + 1, WatchId: burstID, PrevKv: i == 0})
	}
}

// prelude asks what only a fresh store answers.
func (d *differ) prelude() {
	d.openStreams()
	everything := &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}
	d.rangeOf(everything)
	for _, rev := range []int64{-1, -2, 1, 2} {
		d.rangeOf(&pb.RangeRequest{Key: []byte("a"), Revision: rev})
		d.txn(&pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{
			RequestRange: &pb.RangeRequest{Key: []byte("a"), Revision: rev},
		}}}})
		d.hashKV(&pb.HashKVRequest{Revision: rev})
	}
	d.compactAt(&pb.CompactionRequest{Revision: -1})
	d.compactAt(&pb.CompactionRequest{Revision: 0})
	d.compactAt(&pb.CompactionRequest{Revision: 0})
	d.put(&pb.PutRequest{Key: []byte("a"), Value: []byte("v0")})
	for _, size := range []int{maxRequestBytes, maxRequestBytes + 512<<10} {
		d.put(&pb.PutRequest{Key: []byte("a"), Value: bytes.Repeat([]byte("x"), size)})
	}
	for _, kind := range []pb.AlarmType{pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT} {
		d.alarm(&pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: kind})
		d.put(&pb.PutRequest{Key: []byte("a"), Value: []byte("v1")})
		d.alarm(&pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, Alarm: kind})
	}
}

func (d *differ) opRange() { d.rangeOf(d.gen.rangeRequest()) }

func (d *differ) rangeOf(r *pb.RangeRequest) {
	call(d, "Range", r, func(s *server, ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
		return s.kv.Range(ctx, r)
	})
}

func (d *differ) opRangeStream() {
	r := d.gen.rangeRequest()
	if !d.gen.one(4) {
		r.MinModRevision, r.MaxModRevision, r.MinCreateRevision, r.MaxCreateRevision = 0, 0, 0, 0
		r.SortOrder = pb.RangeRequest_NONE
		if !d.gen.one(4) {
			r.SortTarget = pb.RangeRequest_KEY
		}
	}
	if d.gen.one(3) {
		r.Key, r.RangeEnd = []byte{0}, []byte{0}
	}
	d.note("RangeStream", r)
	d.gen.layout.asked(r)
	answers := d.both(func(s *server) answer {
		ctx, cancel := context.WithTimeout(d.t.Context(), d.patience)
		defer cancel()
		a, err := streamRange(ctx, s, forServer(s, r))
		if err != nil {
			return answered(nil, err)
		}
		return a
	})
	d.countError("RangeStream", answers[0])
	if !slices.Equal(answers[0].chunks, answers[1].chunks) {
		d.ledger[diffChunks]++
	}
	const firstChunk = 10
	a, ok := answers[0].msg.(*pb.RangeResponse)
	b, ok2 := answers[1].msg.(*pb.RangeResponse)
	if ok && ok2 && r.GetSortTarget() != pb.RangeRequest_KEY {
		switch {
		case max(len(a.GetKvs()), len(b.GetKvs())) > firstChunk:
			d.ledger[diffStreamSort]++
			return
		case a.GetMore() && b.GetMore() && a.GetCount() != b.GetCount():
			d.ledger[diffStreamSort]++
			a.Count, b.Count = 0, 0
		}
	}
	d.compare(r, answers)
}

func (d *differ) opPut() { d.put(d.gen.putRequest()) }

func (d *differ) put(r *pb.PutRequest) {
	call(d, "Put", r, func(s *server, ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
		return s.kv.Put(ctx, r)
	})
}

func (d *differ) opDelete() { d.deleteRange(d.gen.deleteRequest()) }

func (d *differ) deleteRange(r *pb.DeleteRangeRequest) {
	call(d, "DeleteRange", r, func(s *server, ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
		return s.kv.DeleteRange(ctx, r)
	})
}

func (d *differ) opTxn() { d.txn(d.gen.transaction()) }

func (d *differ) txn(r *pb.TxnRequest) {
	call(d, "Txn", r, func(s *server, ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
		return s.kv.Txn(ctx, r)
	})
}

// opCompact compacts, mostly at a revision near the newest, so that history stays
// short.
func (d *differ) opCompact() {
	r := &pb.CompactionRequest{Revision: d.gen.revision(), Physical: d.gen.one(3)}
	if d.gen.one(2) {
		r.Revision = d.gen.rev - d.gen.Int64N(20)
	}
	// etcd loses the newer value of a key that was deleted and put in the very
	// revision that history is compacted at, and then can't read it.
	for d.doubled[r.Revision] {
		r.Revision--
	}
	d.settleAll()
	d.compactAt(r)
}

func (d *differ) compactAt(r *pb.CompactionRequest) {
	a := call(d, "Compact", r, func(s *server, ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
		return s.kv.Compact(ctx, r)
	})
	if a.err == nil {
		d.compacted(r.GetRevision())
	}
}

// opLarge sends what is about as large as is accepted, and makes events that are
// larger than a watch gets at once.
func (d *differ) opLarge() {
	if d.gen.one(2) {
		r := d.gen.largePut()
		d.put(r)
		d.deleteRange(&pb.DeleteRangeRequest{Key: r.GetKey()})
		return
	}
	keys := d.gen.layout.threeKeys(d.gen)
	d.txn(fatTxn(keys))
	d.txn(fatTxn(keys))
	d.deleteRange(&pb.DeleteRangeRequest{Key: keys[0], RangeEnd: append(slices.Clone(keys[2]), 0), PrevKv: true})
}

func (d *differ) opGrant() {
	r := &pb.LeaseGrantRequest{TTL: d.gen.ttl()}
	if d.gen.one(2) {
		r.ID = d.gen.leaseID()
	}
	began := time.Now()
	a := call(d, "LeaseGrant", r, func(s *server, ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
		return s.lease.LeaseGrant(ctx, r)
	})
	resp, ok := a.msg.(*pb.LeaseGrantResponse)
	if !ok {
		return
	}
	d.leases[resp.GetID()] = resp.GetTTL()
	if resp.GetTTL() < longTTL {
		d.revokeSoon(resp.GetID(), began)
		return
	}
	d.gen.living = append(d.gen.living, resp.GetID())
	if r.GetID() == 0 {
		d.gen.picked = append(d.gen.picked, resp.GetID())
	}
	if len(d.gen.living) > leasesAtOnce {
		d.revoke(d.gen.living[0])
	}
}

// leasesAtOnce bounds the living leases.
const leasesAtOnce = 14

// revokeSoon revokes a lease of the shortest kind, granted after began, before it
// can expire.
func (d *differ) revokeSoon(id int64, began time.Time) {
	r := &pb.LeaseRevokeRequest{ID: id}
	d.note("LeaseRevoke", r)
	answers := d.both(func(s *server) answer {
		ctx, cancel := context.WithTimeout(d.t.Context(), d.patience)
		defer cancel()
		resp, err := s.lease.LeaseRevoke(ctx, forServer(s, r))
		return answered(resp, err)
	})
	delete(d.leases, id)
	if time.Since(began) > shortestTTL {
		d.ledger[diffExpired]++
		return
	}
	d.compare(r, answers)
}

func (d *differ) opRevoke() { d.revoke(d.gen.leaseID()) }

func (d *differ) revoke(id int64) {
	r := &pb.LeaseRevokeRequest{ID: id}
	a := call(d, "LeaseRevoke", r, func(s *server, ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
		return s.lease.LeaseRevoke(ctx, r)
	})
	if a.err != nil {
		return
	}
	delete(d.leases, id)
	for _, ids := range []*[]int64{&d.gen.living, &d.gen.picked} {
		*ids = slices.DeleteFunc(*ids, func(other int64) bool { return other == id })
	}
}

// opKeepAlive renews some leases over one stream.
func (d *differ) opKeepAlive() {
	ids := make([]int64, 1+d.gen.IntN(3))
	for i := range ids {
		ids[i] = d.gen.leaseID()
	}
	streams := make(map[*server]pb.Lease_LeaseKeepAliveClient)
	ctx, cancel := context.WithTimeout(d.t.Context(), d.patience)
	defer cancel()
	for _, s := range d.servers {
		stream, err := s.lease.LeaseKeepAlive(ctx)
		if err != nil {
			d.fatal("open keepalive stream of %s: %v", s.name, err)
		}
		streams[s] = stream
	}
	for _, id := range ids {
		d.exchange("LeaseKeepAlive", &pb.LeaseKeepAliveRequest{ID: id}, func(_ context.Context, s *server) answer {
			if err := streams[s].Send(forServer(s, &pb.LeaseKeepAliveRequest{ID: id})); err != nil {
				return answered(nil, err)
			}
			resp, err := streams[s].Recv()
			return answered(resp, err)
		})
	}
	if d.gen.one(2) {
		d.exchange("LeaseKeepAlive end", &pb.LeaseKeepAliveRequest{}, func(_ context.Context, s *server) answer {
			if err := streams[s].CloseSend(); err != nil {
				return answered(nil, err)
			}
			resp, err := streams[s].Recv()
			if errors.Is(err, io.EOF) {
				return answer{msg: &emptypb.Empty{}}
			}
			return answered(resp, err)
		})
	}
}

func (d *differ) opTimeToLive() {
	r := &pb.LeaseTimeToLiveRequest{ID: d.gen.leaseID(), Keys: !d.gen.one(3)}
	call(d, "LeaseTimeToLive", r, func(s *server, ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
		return s.lease.LeaseTimeToLive(ctx, r)
	})
}

func (d *differ) opLeases() {
	call(d, "LeaseLeases", &pb.LeaseLeasesRequest{}, func(s *server, ctx context.Context, r *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
		return s.lease.LeaseLeases(ctx, r)
	})
}

// stream returns a stream that takes requests.
func (d *differ) stream() *streamPair {
	for {
		if p := pick(d.gen, d.streams); !p.halfClosed {
			return p
		}
	}
}

// watchesPerStream bounds the watches of a stream.
const watchesPerStream = 7

func (d *differ) opWatch() {
	p := d.stream()
	r := d.gen.watchRequest()
	d.note("Watch create", r)
	d.create(p, r)
	if len(p.watches) > watchesPerStream {
		d.note("Watch cancel", "one of many")
		d.cancelOne(p)
	}
}

// opCancel cancels a watch, or an id that has none.
func (d *differ) opCancel() {
	p := d.stream()
	id := d.gen.watchID()
	d.note("Watch cancel", id)
	if p.watches[id] == nil {
		// There is no answer, which shows where the next one is compared.
		d.request(p, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{
			CancelRequest: &pb.WatchCancelRequest{WatchId: id},
		}})
		d.kinds["Watch cancel of an unknown id"]++
		return
	}
	if p.watches[id].lagging {
		if !d.gen.one(4) {
			return // it would take a while
		}
		d.settle(p)
	}
	d.cancelWatch(p, id)
}

// cancelOne cancels a watch of the stream that the test does not need, if one has
// caught up.
func (d *differ) cancelOne(p *streamPair) {
	var ids []int64
	for id := range p.watches {
		if id != everythingID && !p.watches[id].lagging {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return
	}
	slices.Sort(ids)
	d.cancelWatch(p, pick(d.gen, ids))
}

// opProgress asks for progress, which is answered when no watch of the stream is
// in the way of it.
func (d *differ) opProgress() {
	p := d.stream()
	if p.lagging() && !d.gen.one(4) || d.uncertain(p) {
		return // it would take a while, or may be answered later
	}
	d.note("Watch progress", p.index)
	d.settle(p)
	req := &pb.WatchProgressRequest{}
	d.request(p, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: req}})
	if len(p.watches) == 0 {
		d.kinds["Watch progress without a watch"]++
		return
	}
	for _, m := range p.watches {
		if m.lost || m.from > d.gen.rev+1 || m.req.GetStartRevision() > d.gen.rev {
			d.kinds["Watch progress unanswered"]++
			// Requests of a stream are taken in order: once a refused watch is
			// answered, no later write can bring the request its answer.
			d.create(p, &pb.WatchCreateRequest{Key: []byte("b"), RangeEnd: []byte("a")})
			return
		}
	}
	d.control(p, req)
	d.kinds["Watch progress answered"]++
}

func (d *differ) opEmptyWatchRequest() {
	d.note("Watch without request", "")
	d.request(d.stream(), &pb.WatchRequest{})
}

// opReopen ends a stream and opens another.
func (d *differ) opReopen() {
	i := d.gen.IntN(len(d.streams))
	d.note("Watch stream reopened", i)
	d.closePair(d.streams[i])
	d.streams[i] = d.newPair(i)
	if i == 0 {
		d.watchEverything()
	}
}

// opHalfClose ends the client's side of a stream, whose watches live on.
func (d *differ) opHalfClose() {
	p := d.streams[1+d.gen.IntN(len(d.streams)-1)]
	d.note("Watch half close", p.index)
	if p.halfClosed {
		return
	}
	d.settle(p)
	p.halfClosed = true
	for _, side := range p.sides {
		if err := side.client.CloseSend(); err != nil {
			d.fatal("half close stream of %s: %v", side.server.name, err)
		}
	}
}

func (d *differ) opHashKV() { d.hashKV(&pb.HashKVRequest{Revision: d.gen.revision()}) }

func (d *differ) hashKV(r *pb.HashKVRequest) {
	if slices.Contains(d.compactions, r.GetRevision()) {
		d.ledger[diffCompactHash]++
		return
	}
	call(d, "HashKV", r, func(s *server, ctx context.Context, r *pb.HashKVRequest) (*pb.HashKVResponse, error) {
		return s.maint.HashKV(ctx, r)
	})
}

func (d *differ) opHash() {
	call(d, "Hash", &pb.HashRequest{}, func(s *server, ctx context.Context, r *pb.HashRequest) (*pb.HashResponse, error) {
		return s.maint.Hash(ctx, r)
	})
}

func (d *differ) opDefragment() {
	call(d, "Defragment", &pb.DefragmentRequest{}, func(s *server, ctx context.Context, r *pb.DefragmentRequest) (*pb.DefragmentResponse, error) {
		return s.maint.Defragment(ctx, r)
	})
}

func (d *differ) opStatus() {
	call(d, "Status", &pb.StatusRequest{}, func(s *server, ctx context.Context, r *pb.StatusRequest) (*pb.StatusResponse, error) {
		return s.maint.Status(ctx, r)
	})
}

func (d *differ) opAlarms() {
	d.alarm(&pb.AlarmRequest{Alarm: pb.AlarmType(d.gen.IntN(3)), MemberID: uint64(d.gen.IntN(3))})
}

func (d *differ) alarm(r *pb.AlarmRequest) {
	call(d, "Alarm", r, func(s *server, ctx context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
		return s.maint.Alarm(ctx, r)
	})
}

func (d *differ) opMembers() {
	r := &pb.MemberListRequest{Linearizable: d.gen.one(2)}
	call(d, "MemberList", r, func(s *server, ctx context.Context, r *pb.MemberListRequest) (*pb.MemberListResponse, error) {
		return s.cluster.MemberList(ctx, r)
	})
}

// opAlarmed does a few operations under an alarm.
func (d *differ) opAlarmed() {
	kind := pick(d.gen, []pb.AlarmType{pb.AlarmType_NOSPACE, pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT})
	member := uint64(d.gen.IntN(3))
	d.alarm(&pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: kind, MemberID: member})
	for range 6 {
		pick(d.gen, []func(*differ){
			(*differ).opRange, (*differ).opPut, (*differ).opDelete, (*differ).opTxn, (*differ).opGrant, (*differ).opRevoke,
			(*differ).opKeepAlive, (*differ).opTimeToLive, (*differ).opLeases, (*differ).opStatus, (*differ).opAlarms,
		})(d)
	}
	// Neither of these changes anything.
	d.alarm(&pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, Alarm: kind, MemberID: member + 1})
	d.alarm(&pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, Alarm: pb.AlarmType_NONE, MemberID: member})
	d.alarm(&pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, Alarm: kind, MemberID: member})
}

// opClear begins anew with an empty keyspace and without leases.
func (d *differ) opClear() {
	d.deleteRange(&pb.DeleteRangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, PrevKv: true})
	for _, id := range slices.Clone(d.gen.living) {
		d.revoke(id)
	}
}
