package histories

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

// truth is what happened, by revision.
type truth struct {
	log      map[int64][]*mvccpb.Event
	last     int64
	compacts *atomic.Int64
}

// follower is how far an observer's sightings are accounted for.
type follower struct {
	*observer
	*truth
	// at is how far the observer is; due is the revision of the first event that
	// must still come, place its place there.
	at, due int64
	place   int
}

// skip moves on to the next event that the observer must see.
func (f *follower) skip() {
	for ; f.due <= f.last; f.due, f.place = f.due+1, 0 {
		for ; f.place < len(f.log[f.due]); f.place++ {
			if f.wants(f.log[f.due][f.place]) {
				return
			}
		}
	}
}

// check compares what an observer saw with what happened.
func (o *observer) check(tr *truth) error {
	f := &follower{observer: o, truth: tr}
	for n, s := range o.seen {
		if err := f.follow(&s); err != nil {
			return fmt.Errorf("sighting %d: %w", n, err)
		}
	}
	if f.due <= f.last {
		return fmt.Errorf("%v was never seen", f.log[f.due][f.place])
	}
	return nil
}

func (f *follower) follow(s *sighting) error {
	switch {
	case s.begin != 0:
		if f.due != 0 && s.begin > f.due {
			return fmt.Errorf("goes on from %d, %d is due", s.begin, f.due)
		}
		f.at, f.due, f.place = s.begin, s.begin, 0
		f.skip()
	case s.compacted != 0:
		if s.compacted > f.compacts.Load() || f.at >= s.compacted {
			return fmt.Errorf("at %d, ends at compaction %d, compacted up to %d", f.at, s.compacted, f.compacts.Load())
		}
		f.due = 0 // what is between is lost, rightly
	case len(s.events) == 0:
		if f.due <= s.rev && f.due <= f.last {
			return fmt.Errorf("nothing up to %d, %v is due", s.rev, f.log[f.due][f.place])
		}
		f.at = max(f.at, s.rev+1)
	}
	for i, e := range s.events {
		if f.due > f.last {
			return fmt.Errorf("nothing more happened than %v", e)
		}
		if err := f.compare(f.log[f.due][f.place], e); err != nil {
			return err
		}
		rev := f.due
		f.at, f.place = rev+1, f.place+1
		f.skip()
		if i == len(s.events)-1 && !s.more && f.due == rev {
			return fmt.Errorf("ends within revision %d", rev)
		}
		if s.rev < rev {
			return fmt.Errorf("header %d for an event of %d", s.rev, rev)
		}
	}
	return nil
}

func (f *follower) compare(want, got *mvccpb.Event) error {
	expected := &mvccpb.Event{Type: want.Type, Kv: want.Kv}
	if f.request.PrevKv {
		expected.PrevKv = want.PrevKv
		if got.PrevKv == nil && want.Kv.ModRevision <= f.compacts.Load() {
			expected.PrevKv = nil // it was compacted before this watch came to it
		}
	}
	if !proto.Equal(expected, got) {
		return fmt.Errorf("(-want +got):\n%s", cmp.Diff(expected, got, protocmp.Transform()))
	}
	return nil
}

// The check finds what is wrong with what an observer saw.
func TestWatchCheck(t *testing.T) {
	event := func(rev int64, key string, prev *mvccpb.KeyValue) *mvccpb.Event {
		return &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: rev}, PrevKv: prev}
	}
	two := event(2, "h/1", nil)
	three, threeToo := event(3, "h/1", two.Kv), event(3, "h/2", nil)
	four := event(4, "h/1", three.Kv)
	var compacts atomic.Int64
	compacts.Store(3)
	tr := &truth{log: map[int64][]*mvccpb.Event{2: {two}, 3: {three, threeToo}, 4: {four}}, last: 4, compacts: &compacts}
	begin, progress := sighting{begin: 2}, func(rev int64) sighting { return sighting{rev: rev} }
	saw := func(events ...*mvccpb.Event) sighting {
		return sighting{events: events, rev: events[len(events)-1].Kv.ModRevision}
	}
	part := func(s sighting) sighting {
		s.more = true
		return s
	}
	for name, tt := range map[string]struct {
		ok   bool
		seen []sighting
	}{
		"all":                 {true, []sighting{begin, saw(two), saw(three, threeToo), saw(four)}},
		"in one":              {true, []sighting{begin, saw(two, three, threeToo, four)}},
		"in parts":            {true, []sighting{begin, part(saw(two, three)), saw(threeToo), saw(four)}},
		"progress":            {true, []sighting{begin, saw(two), progress(2), saw(three, threeToo), saw(four), progress(4)}},
		"overtaken":           {true, []sighting{begin, {compacted: 3}, {begin: 3}, saw(three, threeToo), saw(four)}},
		"resumed":             {true, []sighting{begin, saw(two), {begin: 3}, saw(three, threeToo), saw(four)}},
		"lost at the end":     {false, []sighting{begin, saw(two), saw(three, threeToo)}},
		"lost":                {false, []sighting{begin, saw(two), saw(four)}},
		"lost in a revision":  {false, []sighting{begin, saw(two), saw(three), saw(four)}},
		"twice":               {false, []sighting{begin, saw(two), saw(two), saw(three, threeToo), saw(four)}},
		"out of order":        {false, []sighting{begin, saw(two), saw(threeToo, three), saw(four)}},
		"split":               {false, []sighting{begin, saw(two), saw(three), saw(threeToo), saw(four)}},
		"resumed too late":    {false, []sighting{begin, saw(two), {begin: 4}, saw(four)}},
		"early progress":      {false, []sighting{begin, saw(two), progress(3), saw(three, threeToo), saw(four)}},
		"wrongly overtaken":   {false, []sighting{begin, saw(two), saw(three, threeToo), {compacted: 3}, {begin: 3}, saw(three, threeToo), saw(four)}},
		"overtaken by nobody": {false, []sighting{begin, saw(two), saw(three, threeToo), {compacted: 4}, {begin: 4}, saw(four)}},
		"wrong previous":      {false, []sighting{begin, saw(two), saw(three, threeToo), saw(event(4, "h/1", two.Kv))}},
		"no previous":         {false, []sighting{begin, saw(two), saw(three, threeToo), saw(event(4, "h/1", nil))}},
		"old header":          {false, []sighting{begin, saw(two), {events: []*mvccpb.Event{three, threeToo}, rev: 2}, saw(four)}},
	} {
		o := &observer{request: &pb.WatchCreateRequest{Key: []byte("h/"), RangeEnd: []byte("h0"), PrevKv: true}, seen: tt.seen}
		if err := o.check(tr); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
