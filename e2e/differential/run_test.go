package differential

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

const (
	// patience is for how long a server is waited for.
	patience = 30 * time.Second
	// maxFaults is the number of differences after which a run ends. A difference
	// that leaves the servers in different states ends it at once.
	maxFaults = 5
	// keptSteps is how much of the history a failure shows.
	keptSteps = 8
	// keptHashes is the number of compactions whose hashes etcd keeps.
	keptHashes = 10
)

// differ runs the same sequence of operations on two servers in lockstep and
// compares all they say.
type differ struct {
	t testing.TB
	// servers are the reference and the one that is held against it.
	servers [2]*server
	gen     *generator
	ledger  ledger
	started time.Time
	// patience bounds every wait for a server.
	patience time.Duration
	// replay is the command that runs the same sequence again.
	replay string

	step   int
	recent []doing
	faults int
	// kinds and errs count what was done and which errors came of it, failed how
	// much of each kind ended with an error.
	kinds, errs, failed map[string]int

	// log holds the events since the compaction revision, as the reference tells
	// them to a watch of everything.
	log []occurrence
	// doubled are the revisions in which a key changed more than once.
	doubled map[int64]bool
	// compactions are the highest revisions that history was compacted at, rising.
	compactions []int64
	// leases are the TTLs granted to the living leases, by logical id.
	leases map[int64]int64

	streams []*streamPair
	// changed is signalled whenever a watch stream has received something.
	changed chan struct{}
}

func newDiffer(tb testing.TB, reference, other *server, seed uint64) *differ {
	tb.Helper()
	checkEnvelopes(tb, reference, other)
	l := newLayout(1)
	if other.order != nil {
		l = other.order.layout
	}
	d := &differ{
		t: tb, servers: [2]*server{reference, other}, gen: newGenerator(seed, l), ledger: make(ledger), started: time.Now(),
		kinds: map[string]int{}, errs: map[string]int{}, failed: map[string]int{}, doubled: map[int64]bool{}, leases: map[int64]int64{},
		changed: make(chan struct{}, 1), patience: patience,
	}
	return d
}

// fault reports a difference.
func (d *differ) fault(format string, args ...any) {
	d.t.Helper()
	d.faults++
	var steps strings.Builder
	for _, o := range d.recent {
		fmt.Fprintf(&steps, "\n  %s", o)
	}
	d.t.Errorf("step %d: %s\n\nlast steps:%s\n\nreplay: %s", d.step, fmt.Sprintf(format, args...), &steps, d.replay)
	if d.faults >= maxFaults {
		d.t.FailNow()
	}
}

// fatal reports a difference after which the sequence can't go on.
func (d *differ) fatal(format string, args ...any) {
	d.t.Helper()
	d.fault(format, args...)
	d.t.FailNow()
}

// note remembers what is being done, and counts it.
func (d *differ) note(kind string, req any) {
	d.kinds[kind]++
	if len(d.recent) == keptSteps {
		d.recent = slices.Delete(d.recent, 0, 1)
	}
	d.recent = append(d.recent, doing{step: d.step, kind: kind, req: req})
}

// doing is one operation for the eyes of who looks into a failure.
type doing struct {
	step int
	kind string
	req  any
}

func (o doing) String() string {
	text := fmt.Sprint(o.req)
	if m, ok := o.req.(proto.Message); ok {
		text = prototext.MarshalOptions{}.Format(m)
	}
	return shortened(fmt.Sprintf("%d %s %s", o.step, o.kind, text))
}

// shortened cuts a text that is too long to be read.
func shortened(text string) string {
	const most = 2000
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}

// both runs f on both servers at once.
func (d *differ) both(f func(s *server) answer) [2]answer {
	var answers [2]answer
	done := make(chan struct{})
	go func() {
		defer close(done)
		answers[1] = f(d.servers[1])
	}()
	answers[0] = f(d.servers[0])
	<-done
	return answers
}

// call sends a request to both servers, compares the answers, waits for the
// events that it caused and returns the reference's answer.
func call[Req, Resp proto.Message](d *differ, kind string, req Req, rpc func(*server, context.Context, Req) (Resp, error)) answer {
	return d.exchange(kind, req, func(ctx context.Context, s *server) answer {
		resp, err := rpc(s, ctx, forServer(s, req))
		return answered(resp, err)
	})
}

func (d *differ) exchange(kind string, req proto.Message, rpc func(context.Context, *server) answer) answer {
	d.t.Helper()
	d.note(kind, req)
	sent := d.gen.metadata()
	answers := d.send(kind, req, func(s *server) answer {
		ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(d.t.Context(), sent), d.patience)
		defer cancel()
		return rpc(ctx, s)
	})
	d.countError(kind, answers[0])
	d.judge(req, answers, answers)
	return answers[0]
}

// send sends a request to both servers.
func (d *differ) send(kind string, req proto.Message, rpc func(*server) answer) [2]answer {
	d.t.Helper()
	d.gen.layout.asked(req)
	answers := d.both(rpc)
	if d.gen.layout.wide(req) {
		d.gen.layout.answered(kind, answers[1])
	}
	return answers
}

// judge compares the answers to a request, or what of them is to be compared, and
// waits for the events that it caused. Where revisions differ those come first, as
// the answers can't be read without.
func (d *differ) judge(req proto.Message, answers, compared [2]answer) {
	d.t.Helper()
	o := d.servers[1].order
	if o == nil || (answers[0].err == nil) != (answers[1].err == nil) {
		d.compare(req, compared)
		d.advance(answers)
		return
	}
	o.made = 0
	d.advance(answers)
	d.compare(req, compared)
	o.made = 0
}

// countError counts an answer that is an error.
func (d *differ) countError(kind string, a answer) {
	if a.err == nil {
		return
	}
	d.failed[kind]++
	text := a.err.Message()
	if strings.HasPrefix(text, messageTooLarge) {
		text = messageTooLarge // without the sizes
	}
	d.errs[a.err.Code().String()+": "+text]++
}

// messageTooLarge begins the text of gRPC's refusal.
const messageTooLarge = "grpc: received message larger than max"

// compare reports in what the answers to a request differ.
func (d *differ) compare(req proto.Message, answers [2]answer) {
	d.t.Helper()
	var sides [2]*masked
	for i, a := range answers {
		sides[i] = &masked{
			server: d.servers[i], req: req, msg: a.message(),
			granted: func(id int64) int64 { return d.leases[id] },
			ran:     int64(time.Since(d.started) / time.Second),
		}
	}
	d.learnPicked(answers)
	d.translate(req, answers)
	d.ledger.mask(sides[0], sides[1])
	if text := diff(sides[0].msg, sides[1].msg); text != "" {
		d.fault("%s differs (-%s +%s):\n%s\nrequest: %s\n%s: %s\n%s: %s", d.recent[len(d.recent)-1],
			d.servers[0].name, d.servers[1].name, text, shortened(prototext.Format(req)),
			d.servers[0].name, shortened(answers[0].String()), d.servers[1].name, shortened(answers[1].String()))
	}
}

// translate puts the reference's revisions into the other server's answer.
func (d *differ) translate(req proto.Message, answers [2]answer) {
	d.t.Helper()
	o := d.servers[1].order
	if o == nil || answers[1].msg == nil {
		return
	}
	if text := o.audit(req, answers[1].msg); text != "" {
		d.fault("%s: %s: %v, to %v", d.servers[1].name, text, answers[1].msg, req)
	}
	o.translate(answers[1].msg)
	a, ok := answers[0].msg.(interface{ GetHeader() *pb.ResponseHeader })
	b, ok2 := answers[1].msg.(interface{ GetHeader() *pb.ResponseHeader })
	if ok && ok2 && mayLag(answers[1].msg) && b.GetHeader().GetRevision() < a.GetHeader().GetRevision() {
		b.GetHeader().Revision = a.GetHeader().GetRevision()
		d.ledger[diffLag]++
	}
}

// translate puts the reference's revisions into answers of a watch.
func (s *server) translate(batches ...*pb.WatchResponse) {
	if s.order == nil {
		return
	}
	for _, b := range batches {
		s.order.translate(b)
	}
}

// learn takes the revisions of what has happened from the other server's batches,
// which hold the events of one revision of the reference, and returns them by key.
func (d *differ) learn(batches []*pb.WatchResponse) map[string]int64 {
	d.t.Helper()
	revisions := make(map[string]int64)
	var events []*mvccpb.Event
	for _, b := range batches {
		events = append(events, b.GetEvents()...)
	}
	for _, e := range events {
		revisions[string(e.GetKv().GetKey())] = e.GetKv().GetModRevision()
	}
	if o := d.servers[1].order; o != nil {
		if text := o.learn(d.gen.rev, events); text != "" {
			d.fatal("%s at revision %d: %s: %v", d.servers[1].name, d.gen.rev, text, batches)
		}
		d.servers[1].translate(batches...)
	}
	return revisions
}

// learnPicked maps the lease id that each server picked onto the other's.
func (d *differ) learnPicked(answers [2]answer) {
	a, ok := answers[0].msg.(*pb.LeaseGrantResponse)
	b, ok2 := answers[1].msg.(*pb.LeaseGrantResponse)
	if ok && ok2 && a.GetID() != b.GetID() {
		d.servers[1].actual[a.GetID()] = b.GetID()
		d.servers[1].logical[b.GetID()] = a.GetID()
	}
}

// advance waits for the events up to the revision of the answers.
func (d *differ) advance(answers [2]answer) {
	d.t.Helper()
	revisions := [2]int64{d.gen.rev, d.gen.rev}
	for i, a := range answers {
		if d.servers[i].order != nil {
			revisions[i] = revisions[0]
			continue
		}
		for _, h := range headers(a.msg) {
			revisions[i] = max(revisions[i], h.GetRevision())
		}
	}
	if revisions[0] != revisions[1] {
		d.fatal("%s is at revision %d, %s at %d", d.servers[0].name, revisions[0], d.servers[1].name, revisions[1])
	}
	if revisions[0] > d.gen.rev {
		d.gen.rev = revisions[0]
		d.deliver()
	}
}

// logged adds events of new revisions to the log.
func (d *differ) logged(events []occurrence) {
	seen := make(map[string]int64)
	for _, e := range events {
		d.gen.layout.happened(e.Event)
		rev := e.GetKv().GetModRevision()
		if seen[string(e.GetKv().GetKey())] == rev {
			d.doubled[rev] = true
		}
		seen[string(e.GetKv().GetKey())] = rev
	}
	d.log = append(d.log, events...)
}

// compacted forgets what the servers have forgotten.
func (d *differ) compacted(rev int64) {
	d.gen.compact = rev
	if o := d.servers[1].order; o != nil {
		o.compacted = o.compacting
	}
	d.compactions = append(d.compactions, rev)
	if n := len(d.compactions) - keptHashes; n > 0 {
		d.compactions = slices.Delete(d.compactions, 0, n)
	}
	d.log = slices.DeleteFunc(d.log, func(e occurrence) bool { return e.GetKv().GetModRevision() < rev })
	maps.DeleteFunc(d.doubled, func(r int64, _ bool) bool { return r < rev })
}

// streamRange reads a streamed range to its end and puts the chunks together.
func streamRange(ctx context.Context, s *server, req *pb.RangeRequest) (answer, error) {
	stream, err := s.kv.RangeStream(ctx, req)
	if err != nil {
		return answered(nil, err), nil
	}
	whole := answer{}
	sum := &pb.RangeResponse{}
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if sum.Header == nil {
				return whole, errors.New("the stream ended without a header")
			}
			whole.msg = sum
			return whole, nil
		}
		if err != nil {
			return answered(nil, err), nil
		}
		if sum.Header != nil {
			return whole, errors.New("a chunk follows the one with the header")
		}
		r := chunk.GetRangeResponse()
		if r.Header == nil && (r.GetMore() || r.GetCount() != 0) {
			return whole, errors.New("a chunk without header has more or count")
		}
		sum.Header, sum.More, sum.Count = r.Header, r.GetMore(), r.GetCount()
		sum.Kvs = append(sum.Kvs, r.GetKvs()...)
		whole.chunks = append(whole.chunks, len(r.GetKvs()))
	}
}
