package lock

import (
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// queue is the keys under a name in the order of their creation, the order of asking. It
// is a pure value: who changes it has a mutex or is alone.
//
// Invariant: nothing is ever put before an entry that is there. Revisions only grow, so what
// an entry has before it only goes.
type queue struct {
	first, last *entry
	byKey       map[string]*entry
}

// entry is one key of a queue.
type entry struct {
	key        string
	created    int64
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
	e := &entry{key: string(kv.Key), created: kv.CreateRevision, prev: q.last}
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
