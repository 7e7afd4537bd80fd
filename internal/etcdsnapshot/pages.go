package etcdsnapshot

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"

	"github.com/latchkey-db/latchkey/internal/backup"
)

// What bbolt's pages look like. Numbers are in the order of the machine's bytes.
const (
	headBytes    = 16 // id (8), flags (2), count (2), overflow (4)
	elementBytes = 16 // of a branch: pos (4), key size (4), page (8); of a leaf: flags (4), pos (4), key size (4), value size (4)
	branchFlag   = 1
	leafFlag     = 2
	bucketFlag   = 1  // of an element of a leaf
	bucketBytes  = 16 // root page (8), sequence (8); a bucket whose root is 0 has its one page behind that

	metaBytes   = 64 // magic (4), version (4), page size (4), flags (4), root (16), free list (8), end (8), transaction (8), checksum (8)
	metaMagic   = 0xED0CDAED
	metaVersion = 2

	minPageSize = 1 << 10
	maxPageSize = 1 << 24
	// maxDepth is more than a tree of pages needs that a disk can hold.
	maxDepth = 64
)

// Is reports whether a file begins as a database of bbolt does.
func Is(in io.ReaderAt) bool {
	var head [headBytes + 4]byte
	_, err := in.ReadAt(head[:], 0)
	return err == nil && binary.NativeEndian.Uint32(head[headBytes:]) == metaMagic
}

// meta is one of the two pages that a database begins with: the newer one counts.
type meta struct {
	pageSize               uint32
	root, end, transaction uint64
}

// readMeta reads a meta page if it is whole.
func readMeta(in io.ReaderAt, at int64) (m meta, whole bool) {
	var page [headBytes + metaBytes]byte
	if _, err := in.ReadAt(page[:], at); err != nil {
		return m, false
	}
	b := page[headBytes:]
	sum := fnv.New64a()
	_, _ = sum.Write(b[:metaBytes-8]) // never fails
	if binary.NativeEndian.Uint32(b) != metaMagic || binary.NativeEndian.Uint32(b[4:]) != metaVersion || binary.NativeEndian.Uint64(b[metaBytes-8:]) != sum.Sum64() {
		return m, false
	}
	m = meta{
		pageSize: binary.NativeEndian.Uint32(b[8:]), root: binary.NativeEndian.Uint64(b[16:]),
		end: binary.NativeEndian.Uint64(b[40:]), transaction: binary.NativeEndian.Uint64(b[48:]),
	}
	return m, m.pageSize >= minPageSize && m.pageSize <= maxPageSize && m.pageSize&(m.pageSize-1) == 0
}

// findMeta returns the meta page that counts. Both must be whole: without the newer one bbolt would take
// the state of the transaction before.
func findMeta(in io.ReaderAt) (meta, bool) {
	first, whole := readMeta(in, 0)
	if !whole {
		return first, false
	}
	second, whole := readMeta(in, int64(first.pageSize))
	if second.transaction > first.transaction {
		return second, whole
	}
	return first, whole
}

// checkPages checks all pages that the buckets of a database consist of: that bbolt can read them.
// It neither checks what it reads nor does its own Check help: one page number that is wrong has
// them read beyond the file, which ends the process as no recover can prevent in a goroutine
// that is bbolt's, or go round in a circle until memory is used up.
func checkPages(in io.ReaderAt, size int64) error {
	m, found := findMeta(in)
	if !found {
		return fmt.Errorf("%w: its first two pages are not whole", backup.ErrDamaged)
	}
	if m.end > uint64(size)/uint64(m.pageSize) {
		return fmt.Errorf("%w: %d pages of %d bytes don't fit into it", backup.ErrCut, m.end, m.pageSize)
	}
	p := &pages{in: in, size: uint64(m.pageSize), seen: make([]bool, m.end)}
	return p.tree(m.root, 0, true)
}

// pages goes through the pages of a database.
type pages struct {
	in   io.ReaderAt
	size uint64
	// seen are those, by number, that have been there.
	seen  []bool
	order order
}

// order is that of the keys of a bucket.
type order struct {
	// last is the key before the next, or one that it is not below.
	last  []byte
	bound bool
}

// rise reports whether key may come next. Keys on branches bound those below them.
func (o *order) rise(key []byte, branch bool) bool {
	c := bytes.Compare(key, o.last)
	ok := c > 0 || c == 0 && o.bound
	o.last, o.bound = bytes.Clone(key), branch
	return ok
}

// page is one with all of its overflow.
type page struct {
	id    uint64
	flags uint16
	count uint64
	bytes []byte
}

func (p *page) damaged(format string, args ...any) error {
	return fmt.Errorf("%w: page %d %s", backup.ErrDamaged, p.id, fmt.Sprintf(format, args...))
}

// parse reads the head of a page.
func parse(b []byte, id uint64) page {
	return page{id: id, flags: binary.NativeEndian.Uint16(b[8:]), count: uint64(binary.NativeEndian.Uint16(b[10:])), bytes: b}
}

// read reads a page that has not been there.
func (w *pages) read(id uint64) (page, error) {
	none := page{id: id}
	// The first two are meta pages.
	if id < 2 || id >= uint64(len(w.seen)) {
		return none, none.damaged("is not below the %d that there are", len(w.seen))
	}
	var head [headBytes]byte
	if _, err := w.in.ReadAt(head[:], int64(id*w.size)); err != nil {
		return none, err
	}
	more := uint64(binary.NativeEndian.Uint32(head[12:]))
	if own := binary.NativeEndian.Uint64(head[:]); own != id {
		return none, none.damaged("says that it is page %d", own)
	}
	if more >= uint64(len(w.seen))-id {
		return none, none.damaged("goes on for %d pages, beyond the %d that there are", more, len(w.seen))
	}
	for i := id; i <= id+more; i++ {
		if w.seen[i] {
			return none, none.damaged("is there twice")
		}
		w.seen[i] = true
	}
	b := make([]byte, (more+1)*w.size)
	if _, err := w.in.ReadAt(b, int64(id*w.size)); err != nil {
		return none, err
	}
	return parse(b, id), nil
}

// element returns where the bytes of the element at an index begin that stands at pos, and checks
// that so many are there.
func (p *page) element(i, pos, size uint64) (from uint64, err error) {
	from = headBytes + i*elementBytes + pos
	if from+size > uint64(len(p.bytes)) {
		return 0, p.damaged("has an element of %d bytes at %d, beyond its end", size, from)
	}
	return from, nil
}

// head returns the fixed part of the element at an index.
func (p *page) head(i uint64) (b []byte, err error) {
	from, err := p.element(i, 0, elementBytes)
	if err != nil {
		return nil, err
	}
	return p.bytes[from : from+elementBytes], nil
}

// tree checks the pages from one on downwards: of the bucket of buckets, or of one of them.
func (w *pages) tree(id uint64, depth int, buckets bool) error {
	p, err := w.read(id)
	switch {
	case err != nil:
		return err
	case p.flags == leafFlag:
		return w.leaf(&p, buckets)
	case p.flags != branchFlag || p.count == 0 || depth == maxDepth:
		return p.damaged("with flags %#x and %d elements is no page of keys", p.flags, p.count)
	}
	for i := range p.count {
		head, err := p.head(i)
		if err != nil {
			return err
		}
		size := uint64(binary.NativeEndian.Uint32(head[4:]))
		from, err := p.element(i, uint64(binary.NativeEndian.Uint32(head)), size)
		if err != nil {
			return err
		}
		if !w.order.rise(p.bytes[from:from+size], true) {
			return p.damaged("has keys out of order")
		}
		if err := w.tree(binary.NativeEndian.Uint64(head[8:]), depth+1, buckets); err != nil {
			return err
		}
	}
	return nil
}

// leaf checks a page of elements, which are buckets or none is.
func (w *pages) leaf(p *page, buckets bool) error {
	for i := range p.count {
		head, err := p.head(i)
		if err != nil {
			return err
		}
		keySize, size := uint64(binary.NativeEndian.Uint32(head[8:])), uint64(binary.NativeEndian.Uint32(head[12:]))
		from, err := p.element(i, uint64(binary.NativeEndian.Uint32(head[4:])), keySize+size)
		if err != nil {
			return err
		}
		if !w.order.rise(p.bytes[from:from+keySize], false) {
			return p.damaged("has keys out of order")
		}
		if flags := binary.NativeEndian.Uint32(head); buckets != (flags == bucketFlag) || flags > bucketFlag {
			return p.damaged("has an element with flags %#x", flags)
		}
		if buckets {
			if err := w.bucket(p, p.bytes[from+keySize:from+keySize+size]); err != nil {
				return err
			}
		}
	}
	return nil
}

// bucket checks the bucket that an element of a page tells of.
func (w *pages) bucket(of *page, value []byte) error {
	outer := w.order
	defer func() { w.order = outer }()
	w.order = order{}
	if len(value) < bucketBytes {
		return of.damaged("has a bucket of %d bytes", len(value))
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return w.tree(root, 0, false)
	}
	if len(value) < bucketBytes+headBytes {
		return of.damaged("has a bucket of %d bytes without a page", len(value))
	}
	p := parse(value[bucketBytes:], of.id)
	if p.flags != leafFlag {
		return of.damaged("has a bucket with flags %#x", p.flags)
	}
	return w.leaf(&p, false)
}
