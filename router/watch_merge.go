package router

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/mvcc"
)

// merged is a watcher of keys of several shards. An event is handed out when every
// piece is known to have nothing older: when the store of each has resolved the
// event's revision and its own events up to there are at hand.
type merged struct {
	id     int64
	g      *WatchGroup
	pieces []*piece
	// start is the first revision that was asked for, 0 for those after the creation.
	start int64
	// after is the revision behind which a watcher without a start begins. Pieces that
	// were there before the last have events from before, which nobody is told of.
	after int64
	// ended says that compaction ended the watcher.
	ended bool
}

// piece is a merged watcher's part of one shard.
type piece struct {
	feed *feed
	// held are events that are not handed out yet. They are whole revisions, rising.
	held []*mvccpb.Event
	// places are those of the events among all changes of their revisions.
	places []uint32
}

// pieceID is the id of the only watcher of a piece's feed.
const pieceID = 1

// Bounds of a merged batch, as of those that come from one store's history.
const (
	maxMergedRevs  = 1000
	maxMergedBytes = 1 << 20
)

// newMerged starts a watcher of several shards and returns the revision of its
// registration, behind which it begins if it has no start: that of the piece whose store
// is the furthest, so that no piece needs history.
func (g *WatchGroup) newMerged(id int64, parts []part, o mvcc.WatchOptions) (m *merged, rev int64) {
	m = &merged{id: id, g: g, start: o.Start}
	o.Places = true
	for _, p := range parts {
		f := g.newFeed(p.d, m)
		g.r.promiser.watch(p.d, 1)
		m.pieces = append(m.pieces, &piece{feed: f})
		o.Key, o.End = p.span.Start, p.span.RangeEnd()
		rev = max(rev, f.group.Add(pieceID, o))
	}
	if m.start == 0 {
		m.after = rev
	}
	return m, rev
}

// future reports whether the watcher starts above rev.
func (m *merged) future(rev int64) bool { return m.start > rev }

func (m *merged) close() {
	if m.ended {
		return
	}
	m.ended = true
	for _, p := range m.pieces {
		m.g.r.promiser.watch(p.feed.d, -1)
		p.feed.group.Close()
		p.held = nil
	}
}

// poll returns the next batch of events, if there is one that is complete.
func (m *merged) poll() (mvcc.WatchBatch, bool, error) {
	for !m.ended {
		compacted, err := m.fill()
		if err != nil {
			return mvcc.WatchBatch{}, false, err
		}
		if compacted != 0 {
			m.close()
			return mvcc.WatchBatch{ID: m.id, CompactRev: max(compacted, m.g.r.system.State().Order.Compacted)}, true, nil
		}
		if b, ok := m.take(m.complete()); ok {
			return b, true, nil
		}
		if m.await() {
			return mvcc.WatchBatch{}, false, nil
		}
	}
	return mvcc.WatchBatch{}, false, nil
}

// fill takes events from the pieces that hold none. It returns the compaction that
// one of them was ended by, 0 if none was.
func (m *merged) fill() (compacted int64, err error) {
	for _, p := range m.pieces {
		for len(p.held) == 0 {
			b, ok, err := p.feed.group.Poll()
			if err != nil || b.CompactRev != 0 {
				return b.CompactRev, err
			}
			if !ok {
				break
			}
			p.held = behind(b.Events, m.after)
			p.places = b.Places[len(b.Events)-len(p.held):]
		}
	}
	return 0, nil
}

// behind returns the events above revision rev, of events that rise.
func behind(events []*mvccpb.Event, rev int64) []*mvccpb.Event {
	for len(events) > 0 && events[0].Kv.ModRevision <= rev {
		events = events[1:]
	}
	return events
}

// complete returns the revision up to which all events are at hand.
func (m *merged) complete() int64 {
	low := int64(-1)
	for _, p := range m.pieces {
		if at := p.complete(); low < 0 || at < low {
			low = at
		}
	}
	return low
}

func (p *piece) complete() int64 {
	if n := len(p.held); n > 0 {
		return p.held[n-1].Kv.ModRevision
	}
	rev, ok := p.feed.group.ProgressOf(pieceID)
	if !ok {
		return 0
	}
	return rev
}

// take hands out the held events up to revision rev, in the order of their revisions, and those
// of one revision in the order in which the changes were made, on whichever shards.
func (m *merged) take(rev int64) (mvcc.WatchBatch, bool) {
	b := mvcc.WatchBatch{ID: m.id}
	revs, size := 0, 0
	for revs < maxMergedRevs && size < maxMergedBytes {
		p := m.oldest()
		if p == nil || p.held[0].Kv.ModRevision > rev {
			break
		}
		b.Rev = p.held[0].Kv.ModRevision
		for p := m.next(b.Rev); p != nil; p = m.next(b.Rev) {
			e := p.held[0]
			size += len(e.Kv.Key) + len(e.Kv.Value) + len(e.GetPrevKv().GetValue())
			b.Events = append(b.Events, e)
			p.held, p.places = p.held[1:], p.places[1:]
		}
		revs++
	}
	return b, len(b.Events) > 0
}

// next returns the piece that holds the next event of revision rev, nil if there is none.
func (m *merged) next(rev int64) (first *piece) {
	for _, p := range m.pieces {
		if len(p.held) == 0 || p.held[0].Kv.ModRevision != rev {
			continue
		}
		if first == nil || mvcc.Before(p.places[0], p.held[0].Kv.Key, first.places[0], first.held[0].Kv.Key) {
			first = p
		}
	}
	return first
}

// oldest returns the piece that holds the event of the lowest revision, nil if none
// holds any.
func (m *merged) oldest() *piece {
	var first *piece
	for _, p := range m.pieces {
		if len(p.held) > 0 && (first == nil || p.held[0].Kv.ModRevision < first.held[0].Kv.ModRevision) {
			first = p
		}
	}
	return first
}

// await asks for what is missing to hand out all that is held, and reports whether
// the group will be woken, or has nothing to wait for. If not, there is more to take.
func (m *merged) await() bool {
	var newest int64
	for _, p := range m.pieces {
		if n := len(p.held); n > 0 {
			newest = max(newest, p.held[n-1].Kv.ModRevision)
		}
	}
	if newest == 0 {
		return true
	}
	waits := false
	for _, p := range m.pieces {
		switch {
		case len(p.held) > 0:
		case !waits:
			waits = !p.feed.await(newest)
		default:
			// One wake-up will do: by then the others may be as far.
			p.feed.want(newest)
		}
	}
	return waits
}
