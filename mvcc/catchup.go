package mvcc

import (
	"bytes"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

const (
	// maxCatchUpRevs and maxCatchUpBytes bound a batch that comes from history.
	// A revision is never split.
	maxCatchUpRevs  = 1000
	maxCatchUpBytes = 1 << 20
	// maxCatchUpScan bounds the changes that one step of catching up looks at.
	maxCatchUpScan = 10_000
)

// catchUp reads the next batch of a lagging watcher from history.
type catchUp struct {
	s *Store
	w *watcher
	// compact is the revision up to which history may be gone.
	compact int64
	// from and to are the first and the last revision to read; run moves from behind what
	// it has read.
	from, to int64
	events   []*mvccpb.Event
	// places are those of the events, if the watcher wants them.
	places []uint32

	// revs, last and bytes describe events: the number of distinct revisions,
	// the highest, and the size.
	revs  int
	last  int64
	bytes int
	// versions is for looking up records and previous versions.
	versions *pebble.Iterator
	buf      []byte
}

// run reads from c.from on: to c.to, or until a batch is full,
// or for as long as one step may take.
func (c *catchUp) run() (err error) {
	c.versions, err = c.s.db.NewIter(c.s.layout.versionBounds())
	if err != nil {
		return err
	}
	defer func() { err = closeAfter(c.versions, err) }()
	if c.w.point {
		return c.runPoint()
	}
	return c.runRange()
}

// room reports whether a change at rev still belongs into the batch. If not, the
// next batch starts with it.
func (c *catchUp) room(rev int64) bool {
	if rev == c.last || c.revs == 0 || c.revs < maxCatchUpRevs && c.bytes < maxCatchUpBytes {
		return true
	}
	c.from = rev
	return false
}

// runRange walks history in the order of changes.
func (c *catchUp) runRange() (err error) {
	h, err := openHistory(c.s.db, c.s.layout, stamp{rev: c.from}, c.to)
	if err != nil {
		return err
	}
	defer func() { err = closeAfter(h, err) }()
	scanned, seen := 0, int64(0)
	for h.next() {
		if scanned++; scanned > maxCatchUpScan && h.at.rev != seen {
			c.from = h.at.rev
			return nil
		}
		seen = h.at.rev
		if !c.w.span.Contains(h.key) {
			continue
		}
		if !c.room(h.at.rev) {
			return nil
		}
		if err := c.add(bytes.Clone(h.key), h.at); err != nil {
			return err
		}
	}
	c.from = c.to + 1
	return h.err
}

// runPoint walks the versions of the one key, oldest first.
func (c *catchUp) runPoint() (err error) {
	l := c.s.layout
	key := c.w.span.Start
	// Versions sort newest first: the bounds are the other way round.
	oldest := l.appendVersion(nil, key, c.from-1, maxSub)
	newest := l.appendVersion(nil, key, c.to, maxSub)
	iter, err := c.s.db.NewIter(&pebble.IterOptions{LowerBound: newest, UpperBound: oldest})
	if err != nil {
		return err
	}
	defer func() { err = closeAfter(iter, err) }()
	for ok := iter.Last(); ok; ok = iter.Prev() {
		k := iter.Key()
		at := stampDesc(k[len(k)-stampLen:])
		if !c.room(at.rev) {
			return nil
		}
		if err := c.add(key, at); err != nil {
			return err
		}
	}
	c.from = c.to + 1
	return iter.Error()
}

// add adds the event of the change of key at at, unless the watcher does not
// want it.
func (c *catchUp) add(key []byte, at stamp) error {
	it, err := c.version(key, at)
	if err != nil || c.w.drops(it.dead) {
		return err
	}
	ev := &mvccpb.Event{Kv: &mvccpb.KeyValue{}}
	it.fill(ev.Kv)
	ev.Kv.Value = it.value
	if it.dead {
		ev.Type = mvccpb.Event_DELETE
	}
	size := len(key) + int(it.size) + eventOverhead
	// The state before a revision is known if that is not compacted.
	if c.w.opts.PrevKV && at.rev > max(c.compact, c.w.opts.Compacted) && (it.dead || it.create != it.mod) {
		prev, err := c.before(key, at.rev)
		if err != nil {
			return err
		}
		if prev == nil && !it.dead {
			return ErrCorrupt
		}
		if prev != nil {
			ev.PrevKv = &mvccpb.KeyValue{Value: prev.value}
			prev.fill(ev.PrevKv)
			size += int(prev.size)
		}
	}
	c.events = append(c.events, ev)
	if c.w.opts.Places {
		c.places = append(c.places, at.sub)
	}
	c.bytes += size
	if at.rev != c.last {
		c.last = at.rev
		c.revs++
	}
	return nil
}

// version returns the version of key at at, with its value.
func (c *catchUp) version(key []byte, at stamp) (*item, error) {
	c.buf = c.s.layout.appendVersion(c.buf[:0], key, at.rev, at.sub)
	if !c.versions.SeekGE(c.buf) || !bytes.Equal(c.versions.Key(), c.buf) {
		if err := c.versions.Error(); err != nil {
			return nil, err
		}
		return nil, ErrCorrupt
	}
	return c.read(key, at)
}

// before returns the version of key that lived before revision rev, with its
// value, or nil.
func (c *catchUp) before(key []byte, rev int64) (*item, error) {
	c.buf = c.s.layout.appendVersions(c.buf[:0], key)
	n := len(c.buf)
	c.buf = keys.AppendUint32Desc(keys.AppendInt64Desc(c.buf, rev-1), maxSub)
	if !c.versions.SeekGE(c.buf) {
		return nil, c.versions.Error()
	}
	k := c.versions.Key()
	if len(k) != len(c.buf) || !bytes.HasPrefix(k, c.buf[:n]) {
		return nil, nil
	}
	it, err := c.read(key, stampDesc(k[n:]))
	if err != nil || it.dead {
		return nil, err
	}
	return it, nil
}

// read returns the version that c.versions stands on.
func (c *catchUp) read(key []byte, at stamp) (*item, error) {
	b, err := c.versions.ValueAndErr()
	if err != nil {
		return nil, err
	}
	rec, err := decodeRecord(b)
	if err != nil {
		return nil, err
	}
	it := newItem(key, at, rec)
	it.value = bytes.Clone(rec.value)
	return &it, nil
}
