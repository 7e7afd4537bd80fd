package commit

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/mvcc"
)

// messageForm opens each message and record, endForm one whose last part is the end of a lease, and
// unpreparedForm a Decision whose home holds nothing before. What a later form has stops this version.
const (
	messageForm    byte = 1
	endForm        byte = 2
	unpreparedForm byte = 3
)

// Prepare has a participant hold keys for a transaction.
type Prepare struct {
	ID  ID
	Age Age
	// Open is the lowest attempt of the node's boot that is still under way. Whatever is below is
	// over.
	Open uint64
	// Home is the shard that decides.
	Home uint64
	// Reads and Writes are the keys of the shard that the transaction names, and those of
	// them that it may write.
	Reads, Writes keys.Set
	// Leases are those that its puts on the shard name.
	Leases []int64
	// End is the end of a lease that the transaction is: what it deletes is what hangs on the lease
	// where it is prepared. Zero for any other transaction.
	End End
}

// End is the end of a lease whose keys lie on several shards, as one transaction.
type End struct {
	// Lease is the grant that ends.
	Lease lease.Ref
	// Decided says that the lease's home has decided that it ends: nobody's rights matter.
	Decided bool
	// Shards are those beside the lease's home that the transaction has prepare it. The home
	// prepares nothing if others may have keys of the lease.
	Shards []uint64
}

// IsZero reports whether e is no end of a lease.
func (e End) IsZero() bool { return e.Lease == lease.Ref{} }

// form returns the form of what ends with e.
func (e End) form() byte {
	if e.IsZero() {
		return messageForm
	}
	return endForm
}

// Prepared is what became of a Prepare that applied.
type Prepared struct {
	// Missing are the leases of it that don't exist.
	Missing []int64
}

// Append writes the message behind dst.
func (p *Prepare) Append(dst []byte) []byte {
	dst = p.ID.append(append(dst, p.End.form()))
	dst = p.Age.First.append(binary.AppendVarint(dst, p.Age.Rev))
	dst = binary.AppendUvarint(binary.AppendUvarint(dst, p.Open), p.Home)
	dst = keys.AppendSet(keys.AppendSet(dst, p.Reads), p.Writes)
	return appendEnd(appendLeases(dst, p.Leases), p.End)
}

// DecodePrepare reads what Append wrote. The result has slices of its own.
func DecodePrepare(src []byte) (p Prepare, err error) {
	r := reader{rest: src}
	ends := r.eitherForm(endForm)
	p.ID = r.id()
	p.Age = Age{Rev: r.varint(), First: r.id()}
	p.Open, p.Home = r.uvarint(), r.uvarint()
	p.Reads, p.Writes = r.set(), r.set()
	p.Leases = r.leases()
	if ends {
		p.End = r.leaseEnd()
	}
	return p, r.end()
}

// Share is what a transaction changes on one shard.
type Share struct {
	ShardID uint64
	Ops     Ops
}

// Ops are operations as they are written: their number, then each as its place, its length and etcd's message. Most who
// have some hand them on. None are nil.
type Ops []byte

// EncodeOps writes operations.
func EncodeOps(list []mvcc.Placed) Ops {
	if len(list) == 0 {
		return nil
	}
	b := binary.AppendUvarint(nil, uint64(len(list)))
	for _, o := range list {
		b = binary.AppendUvarint(b, uint64(o.Place))
		b = binary.AppendUvarint(b, uint64(proto.Size(o.Op)))
		var err error
		if b, err = (proto.MarshalOptions{Deterministic: true}).MarshalAppend(b, o.Op); err != nil {
			panic(fmt.Sprintf("encode operation: %v", err)) //nolint:forbidigo // it was decoded
		}
	}
	return b
}

// Len returns how many there are.
func (o Ops) Len() int {
	n, _ := binary.Uvarint(o)
	return int(n) //nolint:gosec // not above the length
}

// Decode reads them.
func (o Ops) Decode() (list []mvcc.Placed, err error) {
	if o == nil {
		return nil, nil
	}
	r := reader{rest: o}
	r.eachOp(func(place uint32, message []byte) {
		op := new(pb.RequestOp)
		if err := proto.Unmarshal(message, op); err != nil {
			r.fail()
		}
		list = append(list, mvcc.Placed{Place: place, Op: op})
	})
	return list, r.end()
}

// Decision has the home commit a transaction.
type Decision struct {
	ID ID
	// Open is 0 if the home holds keys for the transaction. Else its share is of puts that take place
	// whatever is there, it commits if nobody else holds their keys, and Open is what that of
	// a Prepare is.
	Open uint64
	// Lowest and Highest are the lowest and the highest revision that the transaction names to
	// read at, 0 if it names none.
	Lowest, Highest int64
	// Shares are those of all participants, also of those on which nothing changes.
	Shares []Share
}

// Append writes the message behind dst.
func (d *Decision) Append(dst []byte) []byte {
	if d.Open == 0 {
		dst = d.ID.append(append(dst, messageForm))
	} else {
		dst = binary.AppendUvarint(d.ID.append(append(dst, unpreparedForm)), d.Open)
	}
	dst = binary.AppendVarint(binary.AppendVarint(dst, d.Lowest), d.Highest)
	return appendShares(dst, d.Shares)
}

// DecodeDecision reads what Append wrote.
func DecodeDecision(src []byte) (d Decision, err error) {
	r := reader{rest: src}
	unprepared := r.eitherForm(unpreparedForm)
	d.ID = r.id()
	if unprepared {
		if d.Open = r.uvarint(); d.Open == 0 {
			r.fail()
		}
	}
	d.Lowest, d.Highest = r.varint(), r.varint()
	d.Shares = r.shares()
	return d, r.end()
}

// Finish has a participant make the changes of a transaction that is committed.
type Finish struct {
	ID ID
	// Rev is the transaction's revision.
	Rev int64
	Ops Ops
}

// AppendFinishes writes messages behind dst.
func AppendFinishes(dst []byte, list []Finish) []byte {
	dst = binary.AppendUvarint(append(dst, messageForm), uint64(len(list)))
	for i := range list {
		dst = binary.AppendVarint(list[i].ID.append(dst), list[i].Rev)
		dst = appendOps(dst, list[i].Ops)
	}
	return dst
}

// DecodeFinishes reads what AppendFinishes wrote.
func DecodeFinishes(src []byte) (list []Finish, err error) {
	r := reader{rest: src}
	r.form()
	for range r.count() {
		list = append(list, Finish{ID: r.id(), Rev: r.varint(), Ops: r.ops()})
	}
	return list, r.end()
}

// AppendIDs writes ids behind dst.
func AppendIDs(dst []byte, ids ...ID) []byte {
	dst = append(dst, messageForm)
	for _, id := range ids {
		dst = id.append(dst)
	}
	return dst
}

// DecodeIDs reads what AppendIDs wrote.
func DecodeIDs(src []byte) (ids []ID, err error) {
	r := reader{rest: src}
	r.form()
	for r.err == nil && len(r.rest) > 0 {
		ids = append(ids, r.id())
	}
	return ids, r.end()
}

// Outcome is what a home says of a transaction.
type Outcome struct {
	// Rev is the transaction's revision, 0 if it is aborted and will never be committed.
	Rev int64
}

func appendShares(dst []byte, shares []Share) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(shares)))
	for _, s := range shares {
		dst = appendOps(binary.AppendUvarint(dst, s.ShardID), s.Ops)
	}
	return dst
}

func appendOps(dst []byte, ops Ops) []byte {
	if ops == nil {
		return append(dst, 0)
	}
	return append(dst, ops...)
}

func appendLeases(dst []byte, ids []int64) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(ids)))
	for _, id := range ids {
		dst = binary.AppendVarint(dst, id)
	}
	return dst
}

// appendEnd writes the end of a lease as the last part of a message or record, and nothing if there
// is none.
func appendEnd(dst []byte, e End) []byte {
	if e.IsZero() {
		return dst
	}
	decided := uint64(0)
	if e.Decided {
		decided = 1
	}
	dst = binary.AppendUvarint(appendRef(dst, e.Lease), decided)
	dst = binary.AppendUvarint(dst, uint64(len(e.Shards)))
	for _, id := range e.Shards {
		dst = binary.AppendUvarint(dst, id)
	}
	return dst
}

func appendRef(dst []byte, r lease.Ref) []byte {
	return binary.AppendUvarint(binary.AppendVarint(dst, r.ID), r.Incarnation)
}

// reader takes a message apart. What follows a malformed part reads as zero.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) end() error {
	if r.err == nil && len(r.rest) > 0 {
		return fmt.Errorf("%d bytes behind a message of a transaction: %w", len(r.rest), keys.ErrNewer)
	}
	return r.err
}

func (r *reader) fail() {
	if r.err == nil {
		r.err = errMalformed
	}
	r.rest = nil
}

func (r *reader) form() {
	switch {
	case len(r.rest) == 0:
		r.fail()
	case r.rest[0] != messageForm:
		r.err, r.rest = fmt.Errorf("message of a transaction of form %d: %w", r.rest[0], keys.ErrNewer), nil
	default:
		r.rest = r.rest[1:]
	}
}

// eitherForm is form for what may be of another form, too, and reports whether it is.
func (r *reader) eitherForm(other byte) (is bool) {
	if is = len(r.rest) > 0 && r.rest[0] == other; is {
		r.rest = r.rest[1:]
		return true
	}
	r.form()
	return false
}

func (r *reader) bytes(n uint64) []byte {
	if n > uint64(len(r.rest)) {
		r.fail()
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) id() ID {
	id, err := FromKey(string(r.bytes(idLen)))
	if err != nil {
		r.fail()
	}
	return id
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.rest)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// count reads how many elements follow, of a byte at least each.
func (r *reader) count() uint64 {
	n := r.uvarint()
	if n > uint64(len(r.rest)) {
		r.fail()
		return 0
	}
	return n
}

func (r *reader) set() keys.Set {
	s, rest, err := keys.CutSet(r.rest)
	if err != nil {
		r.fail()
		return nil
	}
	r.rest = rest
	return s
}

func (r *reader) leases() (ids []int64) {
	for range r.count() {
		ids = append(ids, r.varint())
	}
	return ids
}

// leaseEnd reads the end of a lease.
func (r *reader) leaseEnd() (e End) {
	e.Lease = r.ref()
	switch r.uvarint() {
	case 0:
	case 1:
		e.Decided = true
	default:
		r.fail()
	}
	for range r.count() {
		e.Shards = append(e.Shards, r.uvarint())
	}
	if e.Lease.Incarnation == 0 {
		r.fail()
	}
	return e
}

func (r *reader) ref() lease.Ref { return lease.Ref{ID: r.varint(), Incarnation: r.uvarint()} }

func (r *reader) shares() (shares []Share) {
	for range r.count() {
		shares = append(shares, Share{ShardID: r.uvarint(), Ops: r.ops()})
	}
	return shares
}

// ops reads operations, in a slice of their own, and leaves what is in them to Decode.
func (r *reader) ops() Ops {
	all := r.rest
	n := r.eachOp(func(uint32, []byte) {})
	if n == 0 || r.err != nil {
		return nil
	}
	return slices.Clone(all[:len(all)-len(r.rest)])
}

// eachOp calls fn for each of the operations that follow, and returns how many there are.
func (r *reader) eachOp(fn func(place uint32, message []byte)) (n uint64) {
	n = r.count()
	for range n {
		place := r.uvarint()
		message := r.bytes(r.uvarint())
		if place > math.MaxUint32 {
			r.fail()
		}
		if r.err != nil {
			return n
		}
		fn(uint32(place), message)
	}
	return n
}
