package lock

import (
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// queue is the keys under a name in the order of their creation, the order of asking. It
// is a pure value: who changes it has a mutex or is alone.
//
// Invariant: nothing is ever put before an entry that is there. Revisions only grow, so what
// an entry has before it only goes.
//
// Invariant: the holders are the first of the queue, and all of one kind. Who holds goes on
// to hold until its key goes.
type queue struct {
	first, last *entry
	byKey       map[string]*entry
	// next is the first entry that does not hold, as of the last advance.
	next *entry
	// permits are those of the holders together.
	permits int
}

// entry is one key of a queue.
type entry struct {
	key     string
	created int64
	kind    kind
	permits int
	holds   bool

	prev, next *entry
}

// newQueue returns the queue of what a range over its keys has found.
func newQueue(kvs []*mvccpb.KeyValue) *queue {
	q := &queue{byKey: make(map[string]*entry, len(kvs))}
	for _, kv := range kvs {
		q.put(kv)
	}
	return q
}

// put takes note of a key that was created or changed.
func (q *queue) put(kv *mvccpb.KeyValue) {
	if e := q.byKey[string(kv.Key)]; e != nil {
		if e.created == kv.CreateRevision {
			return
		}
		q.unlink(e)
	}
	says := entryOf(kv)
	e := &entry{
		key: string(kv.Key), created: kv.CreateRevision, kind: says.kind(), permits: says.Permits, prev: q.last,
	}
	// Two keys of one transaction are as old as each other, and the first of them in order of
	// keys is the first in the queue. Anything else is newer than all that is there.
	for e.prev != nil && e.before(e.prev) {
		e.prev = e.prev.prev
	}
	if e.prev != nil {
		e.next, e.prev.next = e.prev.next, e
	} else {
		e.next, q.first = q.first, e
	}
	if e.next != nil {
		e.next.prev = e
	} else {
		q.last = e
	}
	q.byKey[e.key] = e
	if e.next == q.next {
		q.next = e
	}
}

// advance has those hold the lock whose turn it is now, and hands each that is new to them to
// fn.
func (q *queue) advance(fn func(*entry)) {
	for q.next != nil && q.fits(q.next) {
		e := q.next
		e.holds, q.next = true, e.next
		q.permits += e.permits
		fn(e)
	}
}

// fits reports whether the first that does not hold may hold beside those that do.
func (q *queue) fits(e *entry) bool {
	if e == q.first {
		return true
	}
	return e.kind == q.first.kind && e.kind.together() && (e.kind.of == 0 || q.permits+e.permits <= e.kind.of)
}

// before reports whether e comes before o.
func (e *entry) before(o *entry) bool {
	return e.created < o.created || e.created == o.created && e.key < o.key
}

// delete takes note of a key that was deleted at revision rev.
func (q *queue) delete(key string, rev int64) {
	if e := q.byKey[key]; e != nil && e.created < rev {
		q.unlink(e)
	}
}

func (q *queue) unlink(e *entry) {
	if e.holds {
		q.permits -= e.permits
	}
	if e == q.next {
		q.next = e.next
	}
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		q.first = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		q.last = e.prev
	}
	delete(q.byKey, e.key)
}
