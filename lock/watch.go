package lock

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/lock/queue"
	"github.com/latchkey-db/latchkey/mvcc"
)

// EventKind says what has happened to a place.
type EventKind string

// What happens in a queue.
const (
	// Queued places have just been made.
	Queued EventKind = "queued"
	// Granted places have the lock from now on.
	Granted EventKind = "granted"
	// Released places had the lock, and are gone before their lease: their holder, or somebody by
	// force, has released it.
	Released EventKind = "released"
	// Expired places had the lock until their lease ended.
	Expired EventKind = "expired"
	// Ended places had the lock, and are gone: nobody knows any more which of the two it was.
	Ended EventKind = "ended"
	// Left places waited, and are gone.
	Left EventKind = "left"
)

// Event is something that has happened in a queue.
type Event struct {
	Kind EventKind
	Place
	Entry
}

// ErrCompacted is returned for a watch from a revision of which not all is known any more.
var ErrCompacted = errors.New("lock: what happened since is compacted")

// Watch hands what happens in a lock's queue from a revision on to tell, all of one revision
// together and in order, so that another watch may go on from the revision after that. With from
// 0 it begins with what is there now: each place as queued, and as granted if it has the lock, at
// the revision of the watch. Otherwise it begins with nothing, at the revision before from. It
// returns when ctx ends, or with the error of tell.
func (s *Service) Watch(ctx context.Context, name string, from int64, tell func(rev int64, events []Event) error) error {
	switch err := checkNames(name, ""); {
	case err != nil:
		return err
	case from < 0:
		return &FieldError{"from", "is negative"}
	}
	prefix := []byte(prefixOf([]byte(name)))
	span := &pb.RangeRequest{
		Key: prefix, RangeEnd: keys.PrefixEnd(prefix), SortTarget: pb.RangeRequest_CREATE, SortOrder: pb.RangeRequest_ASCEND,
	}
	if from > 0 {
		span.Revision = max(from-1, 1)
	}
	resp, err := s.store.Range(ctx, span)
	if err != nil {
		return err
	}
	v := &viewer{s: s, queue: queue.New(nil), places: make(map[string]Event), ends: make(map[string]time.Time), known: resp.Header.Revision}
	there, start := v.see(ctx, putEvents(resp.Kvs), resp.Header.Revision), resp.Header.Revision+1
	if from > 0 {
		there, start = nil, from
	}
	if err := tell(start-1, there); err != nil {
		return err
	}
	o := observer{watchers: s.node.Watchers(), idle: v.learn}
	defer o.watchers.Close()
	err = o.watch(ctx, mvcc.WatchOptions{Key: span.Key, End: span.RangeEnd, Start: start}, func(b *mvcc.WatchBatch) (bool, error) {
		return false, v.seeAll(ctx, b.Events, tell)
	})
	if err == nil {
		return ErrCompacted
	}
	return err
}

// viewer makes events of a queue out of those of its keys.
type viewer struct {
	s     *Service
	queue *queue.Queue
	// places are those that are there, by key.
	places map[string]Event
	// known is the revision at which the watch began: what comes later is seen when it happens.
	known int64
	// ends is when the leases of holders end at the earliest, by key, as far as that is known.
	ends map[string]time.Time
}

// lookAhead is how long before a holder's lease may end the viewer asks whether it was renewed,
// and how long it waits until it asks again.
const lookAhead = time.Second

// learn asks for the leases of holders that may end soon, and returns when to do so again; never
// if there are no holders. So who is gone before that was not gone with the lease.
func (v *viewer) learn(ctx context.Context) (next time.Duration, again bool) {
	now := v.s.now()
	for e := v.queue.First(); e != nil && e.Holds; e = e.Next() {
		if v.places[e.Name].Guards {
			continue
		}
		end, ok := v.ends[e.Name]
		if !ok || end.Sub(now) <= lookAhead {
			// What can't be asked is asked again. A lease that was never seen may have been gone
			// with a release.
			if left, there, err := v.s.remaining(ctx, v.places[e.Name].Place); err == nil && there {
				end = now.Add(left)
				v.ends[e.Name] = end
			}
		}
		if due := max(end.Sub(now)-lookAhead, lookAhead); !again || due < next {
			next, again = due, true
		}
	}
	return next, again
}

// putEvents returns keys that are there as events.
func putEvents(kvs []*mvccpb.KeyValue) []*mvccpb.Event {
	events := make([]*mvccpb.Event, len(kvs))
	for i, kv := range kvs {
		events[i] = &mvccpb.Event{Kv: kv}
	}
	return events
}

// seeAll sees events of any number of revisions.
func (v *viewer) seeAll(ctx context.Context, events []*mvccpb.Event, tell func(int64, []Event) error) error {
	for len(events) > 0 {
		rev, n := events[0].Kv.ModRevision, 1
		for n < len(events) && events[n].Kv.ModRevision == rev {
			n++
		}
		if told := v.see(ctx, events[:n], rev); len(told) > 0 {
			if err := tell(rev, told); err != nil {
				return err
			}
		}
		events = events[n:]
	}
	return nil
}

// see sees what changed in the queue by a revision, and returns what there is to tell of it.
func (v *viewer) see(ctx context.Context, events []*mvccpb.Event, rev int64) (told []Event) {
	for _, ev := range events {
		key := string(ev.Kv.Key)
		if ev.Type == mvccpb.Event_DELETE {
			if e := v.queue.Get(key); e != nil && !v.places[key].Guards {
				told = append(told, v.gone(ctx, e, rev))
			}
			v.queue.Delete(key, ev.Kv.ModRevision)
			delete(v.places, key)
			delete(v.ends, key)
			continue
		}
		p := Event{Kind: Queued, Place: placeOf(ev.Kv), Entry: queue.EntryOf(ev.Kv)}
		if v.queue.Get(key) == nil && !p.Guards {
			told = append(told, p)
		}
		if v.places[key].Lease != p.Lease {
			delete(v.ends, key)
		}
		v.places[key] = p
		v.queue.Put(ev.Kv)
	}
	v.queue.Advance(func(e *queue.Key) {
		if p := v.places[e.Name]; !p.Guards {
			p.Kind = Granted
			told = append(told, p)
		}
	})
	return told
}

// gone returns what there is to tell of a place that was deleted by a revision. A lease that is
// there, or can't have ended yet, did not take it along. One that is not there any more, though
// it was when the watch asked last, has ended.
func (v *viewer) gone(ctx context.Context, e *queue.Key, rev int64) Event {
	p := v.places[e.Name]
	end, learned := v.ends[e.Name]
	switch {
	case !e.Holds:
		p.Kind = Left
	case p.Reason != "", learned && v.s.now().Before(end):
		p.Kind = Released
	default:
		p.Kind = Ended
		left, err := v.s.Remaining(ctx, p.Place)
		switch {
		case err != nil:
		case left > 0:
			p.Kind = Released
		case learned && rev > v.known:
			p.Kind = Expired
		}
	}
	return p
}
