package differential

import (
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// compareBatches holds the batches of a watch against the rules for each server
// and against those of the other, and returns the events of both. They begin at
// different ones where the watch is vague.
func (d *differ) compareBatches(p *streamPair, m *watchModel, batches [2][]*pb.WatchResponse) [2][]*mvccpb.Event {
	d.t.Helper()
	var flat [2][]*mvccpb.Event
	var shape [2]string
	for i, side := range p.sides {
		if text := d.ruleFault(m, i, batches[i]); text != "" {
			d.fault("watch %d on stream %d of %s: %s: %v", m.id, p.index, side.server.name, text, batches[i])
		}
		for _, b := range batches[i] {
			shape[i] += fmt.Sprint(len(b.GetEvents()), b.GetFragment(), b.GetHeader().GetRevision(), " ")
			flat[i] = append(flat[i], b.GetEvents()...)
			for _, e := range b.GetEvents() {
				maskPicked(&masked{server: side.server, msg: e})
			}
		}
	}
	if shape[0] != shape[1] && !m.vague {
		if !m.lagging {
			d.fault("watch %d on stream %d: batches differ: %s and %s", m.id, p.index, shape[0], shape[1])
		}
		d.ledger[diffGrouping]++
	}
	if len(flat[0]) != len(flat[1]) && !m.vague {
		d.fatal("watch %d (%v) on stream %d: %s delivered %v, %s %v", m.id, m.req, p.index,
			d.servers[0].name, flat[0], d.servers[1].name, flat[1])
	}
	for i := range min(len(flat[0]), len(flat[1])) {
		d.compareEvent(p, m, flat[0][len(flat[0])-1-i], flat[1][len(flat[1])-1-i])
	}
	return flat
}

// compareEvent compares an event of the reference with the other server's.
func (d *differ) compareEvent(p *streamPair, m *watchModel, a, b *mvccpb.Event) {
	d.t.Helper()
	if text := diff(a, b); text != "" {
		d.fault("watch %d (%v) on stream %d: events differ (-%s +%s):\n%s", m.id, m.req, p.index,
			d.servers[0].name, d.servers[1].name, text)
	}
}

// ruleFault tells which rule of a watch's answers the batches of one server break.
func (d *differ) ruleFault(m *watchModel, side int, batches []*pb.WatchResponse) string {
	s := d.servers[side]
	for _, b := range batches {
		h := b.GetHeader()
		events := b.GetEvents()
		first, last := events[0].GetKv().GetModRevision(), events[len(events)-1].GetKv().GetModRevision()
		switch {
		case h.GetClusterId() != s.clusterID || h.GetMemberId() != s.memberID || h.GetRaftTerm() == 0:
			return "the header is not the server's"
		case b.GetFragment() && !m.req.GetFragment():
			return "fragments were not asked for"
		case first < m.from && (side == 0 || !m.vague):
			return fmt.Sprintf("an event before revision %d", m.from)
		case h.GetRevision() < last || h.GetRevision() > d.gen.rev:
			return fmt.Sprintf("the header's revision is %d at revision %d", h.GetRevision(), d.gen.rev)
		case !m.lagging && h.GetRevision() != last:
			return fmt.Sprintf("the header of a live event has revision %d", h.GetRevision())
		case b.GetCanceled() || b.GetCreated() || b.GetCompactRevision() != 0 || b.GetCancelReason() != "":
			return "events in an answer of another kind"
		}
		previous := first
		for _, e := range events {
			if e.GetKv().GetModRevision() < previous {
				return "revisions fall"
			}
			previous = e.GetKv().GetModRevision()
		}
	}
	return ""
}

// checkNotices holds the periodic progress notices of a stream against the rules:
// only who asked gets them, and they hold nothing but the revision. That they are
// true is judged where they are received.
func (d *differ) checkNotices(p *streamPair) {
	d.t.Helper()
	for _, side := range p.sides {
		for _, n := range side.takeNotices() {
			side.server.translate(n)
			d.ledger[diffNotices]++
			d.kinds["progress notice of "+side.server.name]++
			if !p.asked[n.GetWatchId()] || n.GetHeader().GetRevision() > d.gen.rev {
				d.fault("stream %d of %s sent a progress notice at revision %d: %v", p.index, side.server.name, d.gen.rev, n)
			}
			want := &pb.WatchResponse{Header: proto.CloneOf(n.GetHeader()), WatchId: n.GetWatchId()}
			if text := diff(want, n); text != "" {
				d.fault("stream %d of %s sent an odd progress notice: %s", p.index, side.server.name, text)
			}
		}
	}
}
