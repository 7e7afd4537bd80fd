package lock

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
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
	// Ended places had the lock, and are gone: released, or with their lease.
	Ended EventKind = "ended"
	// Left places waited, and are gone.
	Left EventKind = "left"
)

// Event is something that has happened in a queue.
type Event struct {
	Kind EventKind
	// Revision is when. A watch may go on from the one after the last it has had.
	Revision int64
	Place
	Entry
}

// ErrCompacted is returned for a watch from a revision of which not all is known any more.
var ErrCompacted = errors.New("lock: what happened since is compacted")

// Watch hands what happens in a lock's queue from a revision on to tell, in order. With from
// 0 that begins with what is there now: each place as queued, and as granted if it has the
// lock, at the revision of the watch. It returns when ctx ends, or with the error of tell.
func (s *Service) Watch(ctx context.Context, name string, from int64, tell func(*Event) error) error {
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
	v := &viewer{queue: newQueue(nil), places: make(map[string]Event), tell: tell}
	start := resp.Header.Revision + 1
	if from > 0 {
		start, v.tell = from, func(*Event) error { return nil }
	}
	if err := v.see(putEvents(resp.Kvs), start-1); err != nil {
		return err
	}
	v.tell = tell
	o := observer{watchers: s.node.Watchers()}
	defer o.watchers.Close()
	err = o.watch(ctx, mvcc.WatchOptions{Key: span.Key, End: span.RangeEnd, Start: start}, func(b *mvcc.WatchBatch) (bool, error) {
		return false, v.seeAll(b.Events)
	})
	if err == nil {
		return ErrCompacted
	}
	return err
}

// viewer makes events of a queue out of those of its keys.
type viewer struct {
	queue *queue
	// places are those that are there, by key.
	places map[string]Event
	tell   func(*Event) error
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
func (v *viewer) seeAll(events []*mvccpb.Event) error {
	for len(events) > 0 {
		rev, n := events[0].Kv.ModRevision, 1
		for n < len(events) && events[n].Kv.ModRevision == rev {
			n++
		}
		if err := v.see(events[:n], rev); err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}

// see sees what changed in the queue by a revision.
func (v *viewer) see(events []*mvccpb.Event, rev int64) error {
	var told []Event
	for _, ev := range events {
		key := string(ev.Kv.Key)
		if ev.Type == mvccpb.Event_DELETE {
			if e := v.queue.byKey[key]; e != nil && !v.places[key].Guards {
				told = append(told, v.gone(e))
			}
			v.queue.delete(key, ev.Kv.ModRevision)
			delete(v.places, key)
			continue
		}
		p := Event{Kind: Queued, Place: placeOf(ev.Kv), Entry: entryOf(ev.Kv)}
		if v.queue.byKey[key] == nil && !p.Guards {
			told = append(told, p)
		}
		v.places[key] = p
		v.queue.put(ev.Kv)
	}
	v.queue.advance(func(e *entry) {
		if p := v.places[e.key]; !p.Guards {
			p.Kind = Granted
			told = append(told, p)
		}
	})
	for i := range told {
		told[i].Revision = rev
		if err := v.tell(&told[i]); err != nil {
			return err
		}
	}
	return nil
}

func (v *viewer) gone(e *entry) Event {
	p := v.places[e.key]
	p.Kind = Left
	if e.holds {
		p.Kind = Ended
	}
	return p
}
