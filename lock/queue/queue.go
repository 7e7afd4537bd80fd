package queue

import (
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Queue is the keys under a name in the order of their creation, the order of asking. It
// is a pure value: who changes it has a mutex or is alone.
//
// Invariant: nothing is ever put before an entry that is there. Revisions only grow, so what
// an entry has before it only goes.
//
// Invariant: the holders are the first of the queue, and all of one kind. Who holds goes on
// to hold until its key goes.
type Queue struct {
	first, last *Key
	byKey       map[string]*Key
	// next is the first entry that does not hold, as of the last advance.
	next *Key
	// permits are those of the holders together.
	permits int
}

// Key is one key of a queue.
type Key struct {
	// Name is the key, Created its create revision, and Holds says that it has the lock, as
	// of the last Advance.
	Name    string
	Created int64
	Holds   bool
	// Client is who asked, as Entry.Client, and Permits are those of a semaphore that it asked for.
	Client  string
	Permits int

	kind kind

	prev, next *Key
}

// New returns the queue of what a range over its keys has found.
func New(kvs []*mvccpb.KeyValue) *Queue {
	q := &Queue{byKey: make(map[string]*Key, len(kvs))}
	for _, kv := range kvs {
		q.Put(kv)
	}
	return q
}

// Get returns a key of the queue, nil if it is not there.
func (q *Queue) Get(name string) *Key { return q.byKey[name] }

// First returns the oldest key, nil if there is none.
func (q *Queue) First() *Key { return q.first }

// Next returns the key behind k, nil for the last.
func (k *Key) Next() *Key { return k.next }

// Put takes note of a key that was created or changed.
func (q *Queue) Put(kv *mvccpb.KeyValue) {
	if e := q.byKey[string(kv.Key)]; e != nil {
		if e.Created == kv.CreateRevision {
			return
		}
		q.unlink(e)
	}
	says := EntryOf(kv)
	e := &Key{
		Name: string(kv.Key), Created: kv.CreateRevision, Client: says.Client, Permits: says.Permits, kind: says.kind(), prev: q.last,
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
	q.byKey[e.Name] = e
	if e.next == q.next {
		q.next = e
	}
}

// Advance has those hold the lock whose turn it is now, and hands each that is new to them to
// fn.
func (q *Queue) Advance(fn func(*Key)) {
	for q.next != nil && q.fits(q.next) {
		e := q.next
		e.Holds, q.next = true, e.next
		q.permits += e.Permits
		fn(e)
	}
}

// fits reports whether the first that does not hold may hold beside those that do.
func (q *Queue) fits(e *Key) bool {
	if e == q.first {
		return true
	}
	return e.Beside(q.first) && (e.kind.of == 0 || q.permits+e.Permits <= e.kind.of)
}

// Beside reports whether two keys may hold beside each other, if there are permits.
func (k *Key) Beside(o *Key) bool { return k.kind == o.kind && k.kind.together() }

// Room returns how many permits of its semaphore others may have beside the key; 0 if it asked for
// none.
func (k *Key) Room() int { return k.kind.of - k.Permits }

// before reports whether k comes before o.
func (k *Key) before(o *Key) bool {
	return k.Created < o.Created || k.Created == o.Created && k.Name < o.Name
}

// Delete takes note of a key that was deleted at revision rev.
func (q *Queue) Delete(key string, rev int64) {
	if e := q.byKey[key]; e != nil && e.Created < rev {
		q.unlink(e)
	}
}

func (q *Queue) unlink(e *Key) {
	if e.Holds {
		q.permits -= e.Permits
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
	delete(q.byKey, e.Name)
}
