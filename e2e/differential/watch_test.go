package differential

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// Ids of the watches that the test keeps for itself on the first stream.
const (
	// everythingID watches all keys. It tells the test what happened, and that a
	// revision's events have been sent.
	everythingID = 1000
	// probeID watches the newest revision for a moment, see catchUp.
	probeID = 1001
	// burstID watches from before a burst of revisions.
	burstID = 1002
)

// watchStream is one watch stream of one server.
type watchStream struct {
	server *server
	cancel context.CancelFunc
	client pb.Watch_WatchClient
	// ended is closed when the stream has.
	ended chan struct{}

	mu sync.Mutex
	// control are the answers to requests, in order, that nobody has taken yet.
	control []*pb.WatchResponse
	// events are the batches of each watch that nobody has taken yet.
	events map[int64][]*pb.WatchResponse
	// notices are the periodic progress notices that nobody has taken yet.
	notices []*pb.WatchResponse
	// reached is the revision up to which each watch has told everything.
	reached map[int64]int64
	// open is the watch whose fragments are being received.
	open *int64
	// broken says what the stream must not have done.
	broken string
	err    error
}

// openStream opens a watch stream; changed is signalled when it has received.
func openStream(ctx context.Context, s *server, changed chan<- struct{}) (*watchStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	client, err := s.watch.Watch(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	w := &watchStream{
		server: s, cancel: cancel, client: client,
		ended: make(chan struct{}), events: make(map[int64][]*pb.WatchResponse),
		reached: make(map[int64]int64),
	}
	go func() {
		defer close(w.ended)
		for {
			resp, err := client.Recv()
			w.receive(resp, err)
			select {
			case changed <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	return w, nil
}

func (w *watchStream) receive(resp *pb.WatchResponse, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.err = err
		return
	}
	w.order(resp)
	switch id := resp.GetWatchId(); {
	case len(resp.GetEvents()) > 0:
		w.events[id] = append(w.events[id], resp)
	case resp.GetCreated() || resp.GetCanceled() || id == -1:
		w.control = append(w.control, resp)
	default:
		w.notices = append(w.notices, resp)
	}
}

// order holds an answer against those before it: fragments of a batch follow each
// other, and nothing comes after what has told that all before was told.
func (w *watchStream) order(resp *pb.WatchResponse) {
	id, events := resp.GetWatchId(), resp.GetEvents()
	fragment := w.open != nil
	if fragment && (*w.open != id || len(events) == 0) {
		w.broken = fmt.Sprintf("an answer of watch %d among the fragments of watch %d", id, *w.open)
	}
	w.open = nil
	if resp.GetFragment() {
		w.open = &id
	}
	reached, known := w.reached[id]
	rev := resp.GetHeader().GetRevision()
	switch {
	case len(events) > 0:
		if first := events[0].GetKv().GetModRevision(); !known || first <= reached && !fragment {
			w.broken = fmt.Sprintf("an event of watch %d at revision %d after revision %d", id, first, reached)
		}
		w.reached[id] = events[len(events)-1].GetKv().GetModRevision()
	case resp.GetCanceled() && resp.GetCreated():
		// Refused; a watch may have that id.
	case resp.GetCanceled():
		delete(w.reached, id)
	case resp.GetCreated():
		w.reached[id] = 0
	case id == -1:
		for other, reached := range w.reached {
			w.reached[other] = max(reached, rev)
		}
	case known:
		w.reached[id] = max(reached, rev)
	}
}

// pending returns the number of events of a watch that nobody has taken.
func (w *watchStream) pending(id int64) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, b := range w.events[id] {
		n += len(b.GetEvents())
	}
	if w.open != nil && *w.open == id {
		return -1 // not before the last fragment
	}
	return n
}

func (w *watchStream) take(id int64) []*pb.WatchResponse {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.events[id]
	delete(w.events, id)
	return taken
}

func (w *watchStream) controls() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.control)
}

func (w *watchStream) takeControl() *pb.WatchResponse {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.control[0]
	w.control = w.control[1:]
	return r
}

func (w *watchStream) takeNotices() []*pb.WatchResponse {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.notices
	w.notices = nil
	return taken
}

func (w *watchStream) trouble() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err.Error()
	}
	return w.broken
}

func (w *watchStream) send(r *pb.WatchRequest) error { return w.client.Send(r) }

// streamPair is a watch stream on both servers, with the watches that it has.
type streamPair struct {
	index   int
	sides   [2]*watchStream
	watches map[int64]*watchModel
	// asked are the ids of watches that wanted progress notices at any time.
	asked map[int64]bool
	// halfClosed is set when the client has ended its side.
	halfClosed bool
}

// lagging tells whether a watch may not have caught up.
func (p *streamPair) lagging() bool {
	for _, m := range p.watches {
		if m.lagging {
			return true
		}
	}
	return false
}

// watchModel is what the test knows of a watch.
type watchModel struct {
	req *pb.WatchCreateRequest
	id  int64
	// from is the first revision whose events the watch gets.
	from int64
	// vague is set where the servers begin at different events, the second with its
	// revision start.
	vague bool
	start int64
	// due are the events that it was not yet seen to deliver, on each side.
	due [2][]*mvccpb.Event
	// lagging is set while the watch may not have caught up.
	lagging bool
	// lost is set when compaction has ended the watch.
	lost bool
}

// occurrence is an event as the reference tells it, and its revision on the other
// server.
type occurrence struct {
	*mvccpb.Event
	other int64
}

// owe adds an event to what the watch has to deliver on each side.
func (m *watchModel) owe(e occurrence) {
	if !m.matches(e.Event) {
		return
	}
	began := e.GetKv().GetModRevision() >= m.from
	if began {
		m.due[0] = append(m.due[0], e.Event)
	}
	if m.vague {
		began = e.other >= m.start
	}
	if began {
		m.due[1] = append(m.due[1], e.Event)
	}
}

// matches tells whether the watch is about an event.
func (m *watchModel) matches(e *mvccpb.Event) bool {
	if m.lost {
		return false
	}
	if slices.Contains(m.req.GetFilters(), pb.WatchCreateRequest_NOPUT) && e.GetType() == mvccpb.Event_PUT ||
		slices.Contains(m.req.GetFilters(), pb.WatchCreateRequest_NODELETE) && e.GetType() == mvccpb.Event_DELETE {
		return false
	}
	key, begin, end := e.GetKv().GetKey(), m.req.GetKey(), m.req.GetRangeEnd()
	if len(begin) == 0 {
		begin = []byte{0}
	}
	switch {
	case len(end) == 0:
		return bytes.Equal(key, begin)
	case len(end) == 1 && end[0] == 0:
		return bytes.Compare(key, begin) >= 0
	default:
		return bytes.Compare(key, begin) >= 0 && bytes.Compare(key, end) < 0
	}
}

// await waits until ready tells true, which it may after something was received.
func (d *differ) await(what string, ready func() bool) {
	d.t.Helper()
	deadline := time.NewTimer(d.patience)
	defer deadline.Stop()
	for !ready() {
		for _, p := range d.streams {
			for _, side := range p.sides {
				if text := side.trouble(); text != "" {
					d.fatal("stream %d of %s while waiting for %s: %s", p.index, side.server.name, what, text)
				}
			}
		}
		select {
		case <-d.changed:
		case <-deadline.C:
			d.fatal("%s: nothing after %v", what, d.patience)
		}
	}
}

// openStreams opens the streams that watches are spread over.
func (d *differ) openStreams() {
	const streams = 3
	for i := range streams {
		d.streams = append(d.streams, d.newPair(i))
	}
	d.watchEverything()
}

// watchEverything starts the watch that the test follows the servers by.
func (d *differ) watchEverything() {
	d.create(d.streams[0], &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, WatchId: everythingID})
}

func (d *differ) newPair(index int) *streamPair {
	p := &streamPair{index: index, watches: make(map[int64]*watchModel), asked: make(map[int64]bool)}
	for i, s := range d.servers {
		var err error
		if p.sides[i], err = openStream(d.t.Context(), s, d.changed); err != nil {
			d.fatal("open watch stream of %s: %v", s.name, err)
		}
	}
	return p
}

// closePair ends a stream after all that it owes was compared.
func (d *differ) closePair(p *streamPair) {
	d.settle(p)
	for _, side := range p.sides {
		side.cancel()
		<-side.ended
	}
}

// request sends a request on both sides of a stream and returns what was sent.
func (d *differ) request(p *streamPair, r *pb.WatchRequest) (sent [2]*pb.WatchRequest) {
	d.t.Helper()
	for i, side := range p.sides {
		sent[i] = forServer(side.server, r)
		if err := side.send(sent[i]); err != nil {
			d.fatal("send on stream %d of %s: %v", p.index, side.server.name, err)
		}
	}
	return sent
}

// control takes the answer to a request from both sides of a stream, compares
// them and returns the reference's.
func (d *differ) control(p *streamPair, req proto.Message) *pb.WatchResponse {
	d.t.Helper()
	var answers [2]answer
	for i, side := range p.sides {
		d.await(fmt.Sprintf("an answer of %s on stream %d", side.server.name, p.index), func() bool { return side.controls() > 0 })
		answers[i].msg = side.takeControl()
	}
	d.compare(req, answers)
	resp, ok := answers[0].msg.(*pb.WatchResponse)
	if !ok {
		d.fatal("no answer")
	}
	return resp
}

// create starts a watch and compares the answers.
func (d *differ) create(p *streamPair, req *pb.WatchCreateRequest) {
	d.t.Helper()
	o := d.servers[1].order
	if o != nil && o.severed(req.GetStartRevision()) {
		req.StartRevision++
	}
	vague := o != nil && o.vague(req.GetStartRevision())
	sent := d.request(p, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: req}})
	resp := d.control(p, req)
	if resp.GetCanceled() {
		d.errs["watch: "+resp.GetCancelReason()]++
		return
	}
	d.gen.layout.asked(req)
	m := &watchModel{
		req: req, id: resp.GetWatchId(), from: req.GetStartRevision(),
		vague: vague, start: sent[1].GetCreateRequest().GetStartRevision(),
	}
	switch {
	case m.from == 0:
		m.from = d.gen.rev + 1
	case m.from <= d.gen.rev && m.from < d.gen.compact:
		m.lost = true
		lost := d.control(p, req)
		if !lost.GetCanceled() || lost.GetCompactRevision() != d.gen.compact || lost.GetWatchId() != m.id {
			d.fault("watch from a compacted revision ended with %v", lost)
		}
		d.errs["watch: compacted"]++
	case m.from <= d.gen.rev:
		m.lagging = true
		for _, e := range d.log {
			m.owe(e)
		}
	}
	p.watches[m.id] = m
	p.asked[m.id] = p.asked[m.id] || req.GetProgressNotify()
}

// cancelWatch ends a watch that exists and compares the answers.
func (d *differ) cancelWatch(p *streamPair, id int64) {
	d.t.Helper()
	req := &pb.WatchCancelRequest{WatchId: id}
	d.request(p, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: req}})
	d.control(p, req)
	delete(p.watches, id)
}

// deliver waits for the events of the newest revision and shares them out to the
// watches; those that keep up have to deliver them now.
func (d *differ) deliver() {
	d.t.Helper()
	first := d.streams[0]
	all := first.watches[everythingID]
	var batches [2][]*pb.WatchResponse
	for i, side := range first.sides {
		d.await(fmt.Sprintf("the events of revision %d from %s", d.gen.rev, side.server.name), func() bool {
			batches[i] = append(batches[i], side.take(everythingID)...)
			if side.server.order != nil {
				return countEvents(batches[i]) >= countEvents(batches[0])
			}
			n := len(batches[i])
			return n > 0 && batches[i][n-1].GetHeader().GetRevision() >= d.gen.rev
		})
	}
	revisions := d.learn(batches[1])
	var news []occurrence
	for _, e := range d.compareBatches(first, all, batches)[0] {
		news = append(news, occurrence{e, revisions[string(e.GetKv().GetKey())]})
	}
	d.logged(news)
	for _, p := range d.streams {
		for _, m := range p.watches {
			if m == all {
				continue
			}
			for _, e := range news {
				m.owe(e)
			}
		}
		d.check(p, false)
	}
}

func countEvents(batches []*pb.WatchResponse) int {
	n := 0
	for _, b := range batches {
		n += len(b.GetEvents())
	}
	return n
}

// check compares what the watches of a stream have delivered; laggards says
// whether those that may not have caught up are waited for.
func (d *differ) check(p *streamPair, laggards bool) {
	d.t.Helper()
	ids := make([]int64, 0, len(p.watches))
	for id := range p.watches {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		m := p.watches[id]
		if id == everythingID || m.lagging && !laggards {
			continue
		}
		if len(m.due[0]) > 0 || len(m.due[1]) > 0 {
			d.checkWatch(p, m)
		}
		d.strays(p, id)
	}
	d.checkNotices(p)
}

func (d *differ) checkWatch(p *streamPair, m *watchModel) {
	d.t.Helper()
	var batches [2][]*pb.WatchResponse
	for i, side := range p.sides {
		due := m.due[i]
		if len(due) == 0 {
			continue
		}
		d.await(fmt.Sprintf("%d events, the first of revision %d, of watch %d on stream %d of %s (%v)",
			len(due), due[0].GetKv().GetModRevision(), m.id, p.index, side.server.name, m.req), func() bool {
			return side.pending(m.id) >= len(due)
		})
		batches[i] = side.take(m.id)
		side.server.translate(batches[i]...)
	}
	for i, events := range d.compareBatches(p, m, batches) {
		d.checkDue(p, m, i, events)
	}
	m.due = [2][]*mvccpb.Event{}
}

// checkDue holds the events that a watch has delivered on one side against what it
// had to.
func (d *differ) checkDue(p *streamPair, m *watchModel, side int, events []*mvccpb.Event) {
	d.t.Helper()
	due, name := m.due[side], d.servers[side].name
	if len(events) != len(due) {
		d.fatal("watch %d on stream %d of %s delivered %d events instead of %d: %v", m.id, p.index, name, len(events), len(due), events)
	}
	for i, e := range events {
		if !proto.Equal(e.GetKv(), due[i].GetKv()) || e.GetType() != due[i].GetType() {
			d.fault("watch %d on stream %d of %s delivered %v instead of %v", m.id, p.index, name, e, due[i])
		}
	}
}

// uncertain tells whether it is unknown if the stream's progress would be told: a
// watch may have begun on one server alone.
func (d *differ) uncertain(p *streamPair) bool {
	o := d.servers[1].order
	if o == nil {
		return false
	}
	for _, m := range p.watches {
		if m.start < startsFar && max(m.start, o.exactly(m.req.GetStartRevision())) > o.last().rev {
			return true
		}
	}
	return false
}

// strays reports events that no watch was owed.
func (d *differ) strays(p *streamPair, id int64) {
	d.t.Helper()
	for _, side := range p.sides {
		if side.pending(id) != 0 {
			d.fault("watch %d on stream %d of %s delivered too much: %v", id, p.index, side.server.name, side.take(id))
		}
	}
}

// settle lets the watches of a stream catch up and compares all they deliver.
func (d *differ) settle(p *streamPair) {
	d.t.Helper()
	d.check(p, true)
	lagging := p.lagging()
	for _, m := range p.watches {
		m.lagging = false
	}
	if lagging {
		d.catchUp()
	}
	d.check(p, true)
	for _, side := range p.sides {
		if n := side.controls(); n > 0 {
			d.fault("stream %d of %s has answers to nothing: %v", p.index, side.server.name, side.takeControl())
		}
	}
}

func (d *differ) settleAll() {
	d.t.Helper()
	for _, p := range d.streams {
		d.settle(p)
	}
}

// catchUp returns when the servers have looked at all watches that began before:
// they do so in rounds, and a watch of the newest revision tells of the next one.
func (d *differ) catchUp() {
	d.t.Helper()
	p := d.streams[0]
	d.create(p, &pb.WatchCreateRequest{
		Key: []byte{0}, RangeEnd: []byte{0}, WatchId: probeID, StartRevision: d.gen.rev,
	})
	d.checkWatch(p, p.watches[probeID])
	d.cancelWatch(p, probeID)
}
