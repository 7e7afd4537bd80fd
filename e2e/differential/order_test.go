package differential

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// order maps the revisions of a server of several shards, which leave gaps, onto
// the reference's: r onto that of the last change up to r. It learns of each change
// as it happens.
type order struct {
	layout *layout
	rnd    *rand.Rand
	// changes are the revisions that changed something, rising. The first stands for
	// all before.
	changes []change
	// shown is the highest revision that a header has shown.
	shown int64
	// made is the revision that the operation at hand has made, 0 if none, with shown as it
	// was before.
	made int64
	// compacted is the compaction revision, compacting what was last asked for.
	compacted, compacting int64
}

// change is a revision that changed something, and what the reference calls it.
type change struct{ rev, reference int64 }

// farOff is added to what is to be in the future; startsFar is a revision that no
// run comes to.
const (
	farOff    = 1 << 30
	startsFar = 1 << 40
)

// newOrder begins where revision rev is the reference's revision reference.
func newOrder(l *layout, seed uint64, rev, reference int64) *order {
	return &order{
		layout: l, rnd: rand.New(rand.NewPCG(seed, 1)), changes: []change{{rev, reference}}, shown: rev, compacted: -1,
	}
}

func (o *order) last() change { return o.changes[len(o.changes)-1] }

// changed returns which change the reference calls r, which has to be known.
func (o *order) changed(r int64) int {
	return sort.Search(len(o.changes), func(i int) bool { return o.changes[i].reference >= r })
}

// between draws a revision from lo to hi, mostly the usual one.
func (o *order) between(lo, hi, usual int64) int64 {
	if o.rnd.IntN(3) > 0 {
		return usual
	}
	return lo + o.rnd.Int64N(hi-lo+1)
}

// outside returns a revision for one of the reference that is no change here.
func (o *order) outside(r int64) (rev int64, ok bool) {
	switch {
	case r <= 0 || r >= startsFar:
		return r, true
	case r < o.changes[0].reference:
		return min(r, o.changes[0].rev-1), true
	case r > o.last().reference:
		return o.shown + farOff + r, true
	default:
		return 0, false
	}
}

// upTo returns a revision up to which the same has happened as up to the
// reference's revision r.
func (o *order) upTo(r int64) int64 {
	if rev, ok := o.outside(r); ok {
		return rev
	}
	i := o.changed(r)
	lo, hi := o.changes[i].rev, o.shown
	if i+1 < len(o.changes) {
		hi = o.changes[i+1].rev - 1
	}
	if o.compacted <= hi {
		lo = max(lo, o.compacted)
	}
	return o.between(lo, hi, lo)
}

// from returns a revision from which on the same has happened as from the
// reference's revision r on.
func (o *order) from(r int64) int64 {
	if r == o.last().reference+1 {
		return o.between(o.last().rev+1, o.shown+1, o.shown+1)
	}
	if rev, ok := o.outside(r); ok {
		return rev
	}
	i := o.changed(r)
	lo, hi := o.changes[i].rev, o.changes[i].rev
	if i > 0 {
		lo = o.changes[i-1].rev + 1
	}
	if o.compacted <= hi {
		lo = max(lo, o.compacted)
	}
	return o.between(lo, hi, hi)
}

// exactly returns the revision that the reference calls r.
func (o *order) exactly(r int64) int64 {
	if rev, ok := o.outside(r); ok {
		return rev
	}
	i := o.changed(r)
	return o.changes[i].rev
}

// start returns from where a watch is to start that starts at the reference's
// revision r; what is to come later starts a little later here.
func (o *order) start(r int64) int64 {
	if o.vague(r) {
		return o.shown + 2 + o.rnd.Int64N(2*(r-o.last().reference))
	}
	return o.from(r)
}

// vague tells whether it is unknown what the reference's revision r will be here.
func (o *order) vague(r int64) bool { return r > o.last().reference+1 && r < startsFar }

// compaction returns the revision to compact at for the reference's revision r:
// the change itself, or one in the gap behind it.
func (o *order) compaction(r int64) int64 {
	o.compacting = o.exactly(r)
	if i := o.changed(r); o.compacting > o.compacted && i+1 < len(o.changes) && r == o.changes[i].reference {
		o.compacting = o.between(o.compacting, o.changes[i+1].rev-1, o.compacting)
	}
	return o.compacting
}

// severed tells whether a compaction, in the gap behind the reference's revision r,
// has taken what a watch from r on would see of r.
func (o *order) severed(r int64) bool {
	return o.compacted >= 0 && o.reference(o.compacted) == r && o.exactly(r) < o.compacted
}

// reference returns what the reference calls a revision.
func (o *order) reference(rev int64) int64 {
	i := sort.Search(len(o.changes), func(i int) bool { return o.changes[i].rev > rev })
	if rev <= 0 || i == 0 {
		return rev
	}
	return o.changes[i-1].reference
}

// referenceOf returns what the reference calls a change, and something that it
// would never say if there was none.
func (o *order) referenceOf(rev int64) int64 {
	i := sort.Search(len(o.changes), func(i int) bool { return o.changes[i].rev >= rev })
	if rev == 0 || i < len(o.changes) && o.changes[i].rev == rev {
		return o.reference(rev)
	}
	return -rev
}

// ask puts the server's revisions into a request.
func (o *order) ask(req proto.Message) {
	eachMessage(req, func(m proto.Message) {
		switch m := m.(type) {
		case *pb.RangeRequest:
			m.Revision = o.upTo(m.Revision)
			m.MinModRevision, m.MaxModRevision = o.from(m.MinModRevision), o.upTo(m.MaxModRevision)
			m.MinCreateRevision, m.MaxCreateRevision = o.from(m.MinCreateRevision), o.upTo(m.MaxCreateRevision)
		case *pb.Compare:
			bound := o.exactly
			switch m.Result {
			case pb.Compare_GREATER:
				bound = o.upTo
			case pb.Compare_LESS:
				bound = o.from
			case pb.Compare_EQUAL, pb.Compare_NOT_EQUAL:
			}
			switch u := m.TargetUnion.(type) {
			case *pb.Compare_ModRevision:
				u.ModRevision = bound(u.ModRevision)
			case *pb.Compare_CreateRevision:
				u.CreateRevision = bound(u.CreateRevision)
			}
		case *pb.WatchCreateRequest:
			m.StartRevision = o.start(m.StartRevision)
		case *pb.CompactionRequest:
			m.Revision = o.compaction(m.Revision)
		case *pb.HashKVRequest:
			m.Revision = o.upTo(m.Revision)
		}
	})
}

// translate puts the reference's revisions into an answer.
func (o *order) translate(msg proto.Message) {
	compaction := func(rev int64) int64 {
		if rev > 0 && rev != o.compacted {
			return -rev
		}
		return o.reference(rev)
	}
	eachMessage(msg, func(m proto.Message) {
		switch m := m.(type) {
		case *pb.ResponseHeader:
			m.Revision = o.reference(m.Revision)
		case *mvccpb.KeyValue:
			m.CreateRevision, m.ModRevision = o.referenceOf(m.CreateRevision), o.referenceOf(m.ModRevision)
		case *pb.WatchResponse:
			m.CompactRevision = compaction(m.CompactRevision)
		case *pb.HashKVResponse:
			m.CompactRevision, m.HashRevision = compaction(m.CompactRevision), o.reference(m.HashRevision)
		}
	})
}

// audit holds the revision in an answer's header against those before: it is that
// of the write that was answered, and never one below what was shown. It returns
// what is wrong.
func (o *order) audit(req, msg proto.Message) string {
	headed, ok := msg.(interface{ GetHeader() *pb.ResponseHeader })
	if !ok || headed.GetHeader().GetRevision() == 0 {
		return ""
	}
	rev, before := headed.GetHeader().GetRevision(), o.shown
	o.shown = max(o.shown, rev)
	if o.made != 0 {
		o.shown = max(o.shown, o.made)
		if rev != o.made {
			return fmt.Sprintf("the header's revision is %d, that of the change %d", rev, o.made)
		}
	}
	if rev < before {
		return fmt.Sprintf("the header's revision is %d, %d was shown before", rev, before)
	}
	return ""
}

// mayLag tells whether an answer's header may have an older revision than the
// reference's.
func mayLag(msg proto.Message) bool {
	name := string(msg.ProtoReflect().Descriptor().Name())
	return strings.HasPrefix(name, "Lease") || strings.HasPrefix(name, "Alarm") || strings.HasPrefix(name, "Auth")
}

// learn takes note of a change that the reference calls r, from the events of a
// watch of everything. It returns what can't be.
func (o *order) learn(r int64, events []*mvccpb.Event) string {
	shards := make(map[int]bool)
	for _, e := range events {
		at := e.GetKv().GetModRevision()
		switch {
		case o.made != 0 && at != o.made:
			return fmt.Sprintf("one change has revisions %d and %d", o.made, at)
		case at <= o.shown:
			return fmt.Sprintf("revision %d follows revision %d", at, o.shown)
		case o.made == 0:
			o.made = at
			o.changes = append(o.changes, change{at, r})
		}
		shards[o.layout.shardOf(e.GetKv().GetKey())] = true
	}
	if len(shards) > 1 {
		o.layout.changed++
	}
	return ""
}

// TestOrder checks how revisions are mapped.
func TestOrder(t *testing.T) {
	l := newLayout(4)
	deleted := func(rev int64, shard int) *mvccpb.Event {
		return &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: l.shards[shard][0], ModRevision: rev}}
	}
	put := func(rev int64, shard int) *mvccpb.Event {
		return &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: l.shards[shard][0], ModRevision: rev}}
	}
	for name, tt := range map[string]struct {
		events []*mvccpb.Event
		ok     bool
	}{
		"a put":                     {[]*mvccpb.Event{put(15, 0)}, true},
		"two in a shard":            {[]*mvccpb.Event{put(15, 0), put(15, 0)}, true},
		"two shards in a revision":  {[]*mvccpb.Event{put(15, 0), deleted(15, 1), put(15, 0)}, true},
		"two revisions":             {[]*mvccpb.Event{deleted(15, 0), deleted(16, 1)}, false},
		"two revisions, backwards":  {[]*mvccpb.Event{deleted(16, 2), deleted(15, 1)}, false},
		"a revision that was shown": {[]*mvccpb.Event{put(10, 0), put(10, 1)}, false},
	} {
		o := newOrder(l, 1, 1, 1)
		o.shown = 10
		if text := o.learn(2, tt.events); (text == "") != tt.ok {
			t.Errorf("%s: %q", name, text)
		}
	}
	// Reference: 1 2 3 4; here:
	o := newOrder(l, 1, 1, 1)
	for i, events := range [][]*mvccpb.Event{{put(10, 0)}, {deleted(15, 0), deleted(15, 1)}, {put(30, 0)}} {
		o.made = 0
		if text := o.learn(int64(i+2), events); text != "" {
			t.Fatal(text)
		}
	}
	o.shown = 40
	within := func(what string, f func(int64) int64, r, lo, hi int64) {
		for range 50 {
			if rev := f(r); rev < lo || rev > hi {
				t.Errorf("%s %d: %d, want %d to %d", what, r, rev, lo, hi)
			}
		}
	}
	within("up to", o.upTo, 1, 1, 9)
	within("up to", o.upTo, 2, 10, 14)
	within("up to", o.upTo, 3, 15, 29)
	within("up to", o.upTo, 4, 30, 40)
	within("up to", o.upTo, 5, 41+farOff, startsFar)
	within("from", o.from, 1, 1, 1)
	within("from", o.from, 3, 11, 15)
	within("from", o.from, 4, 16, 30)
	within("from", o.from, 5, 31, 41)
	within("from", o.from, 6, 41+farOff, startsFar)
	within("start", o.start, 6, 42, 50)
	within("reference", o.reference, 17, 3, 3)
	within("reference", o.reference, 29, 3, 3)
	within("reference of", o.referenceOf, 15, 3, 3)
	within("reference of", o.referenceOf, 16, -16, -16)
	o.compacted = 12 // behind 2
	within("up to", o.upTo, 2, 12, 14)
	within("from", o.from, 3, 12, 15)
	within("compaction", o.compaction, 2, 10, 10)
	within("compaction", o.compaction, 3, 15, 29)
	if !o.severed(2) || o.severed(3) {
		t.Error("what a compaction behind 2 has taken")
	}
}
