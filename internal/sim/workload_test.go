package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/mvcc"
)

// workload is clients that do everything that clients do.
type workload struct {
	tb testing.TB
	c  *cluster
	h  *history
	// directories are where the keys are, one a shard; each has perDirectory keys.
	directories  []string
	perDirectory int
	// stop ends the clients.
	stop  chan struct{}
	began time.Time
	wg    sync.WaitGroup
	// seen is the highest revision that any client has seen.
	seen atomic.Int64
	// compacted is the highest revision that a compaction was asked for at.
	compacted atomic.Int64
	// solo is the last revision that the only shard counted by itself.
	solo int64
	// collector hears of everything.
	collector *watcher

	mu sync.Mutex
	// watchers and leases are protected by mu.
	watchers []*watcher
	leases   map[int64]*leaseLife
}

func newWorkload(tb testing.TB, c *cluster) *workload {
	tb.Helper()
	w := &workload{
		tb: tb, c: c, h: &history{}, directories: []string{"a/", "b/", "c/", "d/"}, perDirectory: 5,
		stop: make(chan struct{}), began: time.Now(), leases: make(map[int64]*leaseLife),
	}
	w.collector = &watcher{c: c, key: []byte{0}, end: []byte{0}, next: 1, first: 1, wake: make(chan struct{}, 1)}
	w.collector.pick = func() *process { return c.any(rand.New(rand.NewPCG(c.options.seed, 3))) }
	return w
}

// any returns a node that runs, nil if none does.
func (c *cluster) any(rnd *rand.Rand) *process {
	all := c.all()
	first := rnd.IntN(len(all))
	for i := range all {
		if p := all[(first+i)%len(all)].running(); p != nil {
			return p
		}
	}
	return nil
}

func (w *workload) stopped() bool { return closed(w.stop) }

// start starts clients of all kinds.
func (w *workload) start(clients int) {
	w.c.wg.Go(func() { w.collector.run(w.c.ctx.Done()) })
	for i := range clients {
		w.wg.Go(func() { w.client(i) })
	}
	for i := range clients {
		w.wg.Go(func() { w.leaseClient(clients + i) })
	}
	w.wg.Go(w.watchClient)
}

func (w *workload) key(rnd *rand.Rand, directory string) []byte {
	return []byte(directory + strconv.Itoa(rnd.IntN(w.perDirectory)))
}

func (w *workload) directory(rnd *rand.Rand) string {
	return w.directories[rnd.IntN(len(w.directories))]
}

// do makes a call on a node, within the patience of a client.
func (w *workload) do(p *process, req proto.Message) *op {
	ctx, cancel := context.WithTimeout(w.c.ctx, 2*time.Second)
	defer cancel()
	o := w.h.do(ctx, p, req)
	if o.outcome == answered {
		for seen := w.seen.Load(); seen < o.header() && !w.seen.CompareAndSwap(seen, o.header()); seen = w.seen.Load() {
		}
	}
	return o
}

// client makes one call after the other.
func (w *workload) client(id int) {
	rnd := rand.New(rand.NewPCG(w.c.options.seed, uint64(100+id)))
	for n := 0; !w.stopped(); n++ {
		p := w.c.any(rnd)
		if p == nil {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		value := fmt.Sprintf("%d.%d", id, n)
		w.do(p, w.request(rnd, value))
		if rnd.IntN(2) == 0 {
			time.Sleep(time.Duration(rnd.IntN(30000)) * time.Microsecond)
		}
	}
}

// request draws a request. Whatever it writes has the value given in it.
func (w *workload) request(rnd *rand.Rand, value string) proto.Message {
	directory := w.directory(rnd)
	key := w.key(rnd, directory)
	switch n := rnd.IntN(100); {
	case n < 30:
		return &pb.PutRequest{Key: key, Value: []byte(value)}
	case n < 38:
		return &pb.DeleteRangeRequest{Key: key}
	case n < 40:
		r := &pb.DeleteRangeRequest{Key: key, RangeEnd: []byte(directory + "9")}
		if end := w.directory(rnd); rnd.IntN(2) == 0 && end > directory {
			r.RangeEnd = []byte(end + "2")
		}
		return r
	case n < 60:
		return w.txn(rnd, directory, value)
	case n < 75:
		return w.anyRange(rnd, directory, key)
	case n < 80:
		return &pb.RangeRequest{Key: key}
	case n < 86:
		r := &pb.TxnRequest{}
		for _, d := range w.directories {
			r.Success = append(r.Success, wrapRange(&pb.RangeRequest{Key: w.key(rnd, d)}))
		}
		return r
	case n < 92:
		r := w.anyRange(rnd, directory, key)
		r.Serializable = true
		return r
	default:
		r := w.anyRange(rnd, directory, key)
		r.Revision = max(1, w.seen.Load()-rnd.Int64N(300))
		r.Serializable = rnd.IntN(4) == 0
		return r
	}
}

func wrapRange(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

func wrapPut(r *pb.PutRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r}}
}

func wrapDelete(r *pb.DeleteRangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}
}

// anyRange draws a range over everything, over some shards, or inside one.
func (w *workload) anyRange(rnd *rand.Rand, directory string, key []byte) *pb.RangeRequest {
	r := &pb.RangeRequest{Key: key, RangeEnd: []byte(directory + "9")}
	switch rnd.IntN(3) {
	case 0:
		r.Key, r.RangeEnd = []byte{0}, []byte{0}
	case 1:
		r.RangeEnd = []byte(w.directory(rnd) + "9")
		if string(r.RangeEnd) <= string(r.Key) {
			r.RangeEnd = []byte{0}
		}
	}
	switch rnd.IntN(6) {
	case 0:
		r.CountOnly = true
	case 1:
		r.Limit = 1 + rnd.Int64N(6)
	}
	return r
}

// txn draws a transaction in one shard, or over several. Its operations concern different keys.
func (w *workload) txn(rnd *rand.Rand, directory, value string) *pb.TxnRequest {
	order := rnd.Perm(w.perDirectory)
	wide, first := rnd.IntN(3) == 0, rnd.IntN(len(w.directories))
	key := func(i int) []byte {
		if wide {
			directory = w.directories[(first+i)%len(w.directories)]
		}
		return []byte(directory + strconv.Itoa(order[i]))
	}
	compared := key(rnd.IntN(2))
	r := &pb.TxnRequest{}
	switch rnd.IntN(4) {
	case 0:
		r.Compare = append(r.Compare, &pb.Compare{Key: compared, Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{}})
	case 1:
		r.Compare = append(r.Compare, &pb.Compare{
			Key: compared, Target: pb.Compare_MOD, Result: pb.Compare_LESS,
			TargetUnion: &pb.Compare_ModRevision{ModRevision: w.seen.Load() - rnd.Int64N(40)},
		})
	case 2:
		r.Compare = append(r.Compare, &pb.Compare{
			Key: compared, Target: pb.Compare_VERSION, Result: pb.Compare_GREATER, TargetUnion: &pb.Compare_Version{Version: rnd.Int64N(3)},
		})
	}
	r.Success = append(r.Success, wrapRange(&pb.RangeRequest{Key: key(0)}), wrapPut(&pb.PutRequest{Key: key(1), Value: []byte(value + "s")}))
	if rnd.IntN(2) == 0 {
		r.Success = append(r.Success, wrapPut(&pb.PutRequest{Key: key(2), Value: []byte(value + "t")}), wrapDelete(&pb.DeleteRangeRequest{Key: key(3)}))
	}
	r.Failure = append(r.Failure, wrapRange(&pb.RangeRequest{Key: key(1)}))
	if rnd.IntN(3) == 0 {
		r.Failure = append(r.Failure, wrapPut(&pb.PutRequest{Key: key(4), Value: []byte(value + "f")}))
	}
	return r
}

// watchClient starts watchers now and then.
func (w *workload) watchClient() {
	rnd := rand.New(rand.NewPCG(w.c.options.seed, 50))
	for !w.stopped() {
		watch := &watcher{c: w.c, key: []byte{0}, end: []byte{0}, wake: make(chan struct{}, 1)}
		directory := w.directory(rnd)
		switch rnd.IntN(4) {
		case 0:
			watch.key, watch.end = []byte(directory), []byte(directory+"9")
		case 1:
			watch.key, watch.end = []byte(directory), nil
			watch.key = w.key(rnd, directory)
		case 2:
			watch.key, watch.end = []byte("a/3"), []byte("c/2")
		}
		switch seen := w.seen.Load(); rnd.IntN(3) {
		case 0:
			watch.next = max(w.compacted.Load(), 1, seen-rnd.Int64N(500))
		case 1:
			watch.next = seen + 1 + rnd.Int64N(500)
		}
		watch.first = watch.next
		picks := rand.New(rand.NewPCG(w.c.options.seed, rnd.Uint64()))
		watch.pick = func() *process { return w.c.any(picks) }
		w.mu.Lock()
		w.watchers = append(w.watchers, watch)
		n := len(w.watchers)
		w.mu.Unlock()
		w.c.wg.Go(func() { watch.run(w.c.ctx.Done()) })
		pause := 50 * time.Millisecond
		if n > 12 {
			pause = time.Second
		}
		select {
		case <-time.After(pause + time.Duration(rnd.IntN(100))*time.Millisecond):
		case <-w.stop:
		}
		w.askProgress()
	}
}

// askProgress has all watchers ask for progress.
func (w *workload) askProgress() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, watch := range append(w.watchers, w.collector) {
		select {
		case watch.wake <- struct{}{}:
		default:
		}
	}
}

// compact asks for one compaction, at a revision up to which the collector has heard
// everything.
func (w *workload) compact(rnd *rand.Rand) {
	p := w.c.any(rnd)
	rev := w.collector.reached() - rnd.Int64N(100)
	if p == nil || rev <= w.compacted.Load() {
		return
	}
	w.compacted.Store(rev)
	w.do(p, &pb.CompactionRequest{Revision: rev})
}

// leaseClient grants a lease, hangs keys on it in several shards, keeps it alive for a
// while, and sees it end.
func (w *workload) leaseClient(id int) {
	rnd := rand.New(rand.NewPCG(w.c.options.seed, uint64(100+id)))
	for n := 0; !w.stopped(); n++ {
		if p := w.c.any(rnd); p != nil {
			w.oneLease(rnd, p, fmt.Sprintf("%d.%d", id, n))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// oneLease is the life of one lease.
func (w *workload) oneLease(rnd *rand.Rand, p *process, value string) {
	l := &leaseLife{id: 1 + rnd.Int64N(1<<62), ttl: 1 + rnd.Int64N(3)}
	w.mu.Lock()
	w.leases[l.id] = l
	w.mu.Unlock()
	renewed := time.Now()
	if w.do(p, &pb.LeaseGrantRequest{ID: l.id, TTL: l.ttl}).outcome != answered {
		return
	}
	alive := func(o *op) bool { return o.ended.Sub(renewed) < time.Duration(l.ttl)*time.Second }
	for i := range 1 + rnd.IntN(4) {
		p := w.c.any(rnd)
		if p == nil {
			continue
		}
		put := &pb.PutRequest{Key: []byte(w.directory(rnd) + "l" + value + "." + strconv.Itoa(i)), Value: []byte(value + "." + strconv.Itoa(i)), Lease: l.id}
		var req proto.Message = put
		if rnd.IntN(2) == 0 {
			req = &pb.TxnRequest{Success: []*pb.RequestOp{wrapPut(put)}}
		}
		if o := w.do(p, req); errors.Is(o.err, mvcc.ErrLeaseNotFound) && alive(o) {
			w.tb.Errorf("%v lives, and: %v", l, o)
		}
	}
	for range rnd.IntN(4) {
		time.Sleep(time.Duration(l.ttl) * time.Second * time.Duration(1+rnd.IntN(8)) / 10)
		p := w.c.any(rnd)
		if p == nil || w.stopped() {
			continue
		}
		o := w.do(p, &pb.LeaseKeepAliveRequest{ID: l.id})
		if o.outcome != answered {
			continue
		}
		if o.resp.(*pb.LeaseKeepAliveResponse).TTL > 0 {
			renewed = o.beganAt
			continue
		}
		if alive(o) {
			w.tb.Errorf("%v was renewed %v ago, and: %v", l, o.ended.Sub(renewed), o)
		}
		return
	}
	if p := w.c.any(rnd); p != nil && rnd.IntN(3) == 0 {
		o := w.do(p, &pb.LeaseRevokeRequest{ID: l.id})
		if errors.Is(o.err, lease.ErrNotFound) && alive(o) {
			w.tb.Errorf("%v was renewed %v ago, and: %v", l, o.ended.Sub(renewed), o)
		}
		if o.outcome == answered {
			w.gone(rnd, l)
		}
		return
	}
	w.silent(rnd, l, renewed)
}

// gone checks that no key of a lease is there any more.
func (w *workload) gone(rnd *rand.Rand, l *leaseLife) {
	p := w.c.any(rnd)
	if p == nil {
		return
	}
	o := w.do(p, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if o.outcome != answered {
		return
	}
	for _, kv := range o.resp.(*pb.RangeResponse).Kvs {
		if kv.Lease == l.id {
			w.tb.Errorf("%v is gone, and not its key %q: %v", l, kv.Key, o)
		}
	}
}

// silent waits for the end of a lease that nobody renews.
func (w *workload) silent(rnd *rand.Rand, l *leaseLife, renewed time.Time) {
	for {
		time.Sleep(time.Duration(50+rnd.IntN(200)) * time.Millisecond)
		p := w.c.any(rnd)
		if p == nil {
			continue
		}
		o := w.do(p, &pb.LeaseTimeToLiveRequest{ID: l.id, Keys: rnd.IntN(2) == 0})
		age := o.ended.Sub(renewed)
		switch {
		case errors.Is(o.err, lease.ErrNotFound):
			if age < time.Duration(l.ttl)*time.Second {
				w.tb.Errorf("%v ended %v after its renewal: %v", l, age, o)
			}
			w.gone(rnd, l)
			return
		case age > 30*time.Second:
			w.tb.Errorf("%v has been silent for %v and has not ended: %v", l, age, o)
			return
		}
		if w.c.ctx.Err() != nil {
			return
		}
	}
}
