package router

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/invariant"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/mvcc"
)

// Revision returns the newest revision that this node knows.
func (r *Router) Revision() int64 {
	var rev int64
	for _, d := range r.shards {
		rev = max(rev, d.Store().Rev())
	}
	return rev
}

// DBSize returns the logical size in bytes of all retained versions on this node.
func (r *Router) DBSize() int64 {
	var size int64
	for _, d := range r.shards {
		size += d.Store().Size()
	}
	return size
}

// LiveSize returns the logical size in bytes of the current versions on this
// node.
func (r *Router) LiveSize() int64 {
	var size int64
	for _, d := range r.shards {
		v := d.Store().View()
		size += v.LiveSize()
		v.Close()
	}
	return size
}

// NewWatchGroup returns the watchers of one client stream. The map covers the
// whole keyspace before a node serves.
func (r *Router) NewWatchGroup() *mvcc.Group {
	d, err := r.whole()
	if err != nil {
		invariant.Violated("watch on a map without owners: %v", err)
	}
	return d.Store().NewGroup()
}

// HashKV hashes all versions up to rev, 0 for the newest revision, as this node
// holds them.
func (r *Router) HashKV(_ context.Context, rev int64) (resp *pb.HashKVResponse, err error) {
	d, err := r.whole()
	if err != nil {
		return nil, err
	}
	err = view(d, func(v *mvcc.View) error {
		sum, compacted, hashed, err := v.HashKV(rev)
		resp = &pb.HashKVResponse{
			Header: &pb.ResponseHeader{Revision: v.Rev()}, Hash: sum, CompactRevision: compacted, HashRevision: hashed,
		}
		return err
	})
	return resp, err
}

// Hash hashes everything that this node's replica retains.
func (r *Router) Hash(context.Context) (sum uint32, err error) {
	d, err := r.whole()
	if err != nil {
		return 0, err
	}
	err = view(d, func(v *mvcc.View) error {
		sum, err = v.Hash()
		return err
	})
	return sum, err
}

// Defragment gives the space of removed records back to the disk. Requests are
// served meanwhile.
func (r *Router) Defragment(ctx context.Context) error { return r.compact(ctx) }

// A backup is the magic, the revision, then records of a letter, a length and a
// body: 'l' a lease (its etcd LeaseGrantRequest), 'k' a key (its etcd
// mvccpb.KeyValue), and 'e' the end, whose body is the CRC-32C of all before it.
// Numbers are unsigned varints, the checksum is big-endian.
const backupMagic = "latchkey backup 1\n"

const (
	backupLease byte = 'l'
	backupKey   byte = 'k'
	backupEnd   byte = 'e'
	// backupChunk is about how many bytes of keys are read at a time.
	backupChunk = 1 << 20
)

// WriteSnapshot writes a backup: all leases and all current keys of one
// revision.
func (r *Router) WriteSnapshot(ctx context.Context, w io.Writer) error {
	d, err := r.whole()
	if err != nil {
		return err
	}
	if err := r.confirm(ctx, d); err != nil {
		return err
	}
	var v *mvcc.View
	var leases []lease.Record
	d.Replica().Between(func() { v, leases = d.Store().View(), d.Leases() })
	defer v.Close()
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	b := &backup{out: bufio.NewWriterSize(io.MultiWriter(w, sum), 256<<10)}
	b.bytes([]byte(backupMagic))
	b.bytes(binary.AppendUvarint(nil, uint64(v.Rev())))
	for _, rec := range leases {
		b.message(backupLease, &pb.LeaseGrantRequest{ID: rec.ID, TTL: rec.TTL})
	}
	all := &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}
	err = v.RangeChunks(ctx, all, backupChunk, func(chunk *pb.RangeResponse) error {
		for _, kv := range chunk.Kvs {
			b.message(backupKey, kv)
		}
		return b.err
	})
	if err = errors.Join(err, b.err, b.out.Flush()); err != nil {
		return err
	}
	end := append([]byte{backupEnd, 4}, binary.BigEndian.AppendUint32(nil, sum.Sum32())...)
	_, err = w.Write(end)
	return err
}

// backup writes records and keeps the first error.
type backup struct {
	out *bufio.Writer
	buf []byte
	err error
}

func (b *backup) bytes(p []byte) {
	if b.err == nil {
		_, b.err = b.out.Write(p)
	}
}

func (b *backup) message(letter byte, m proto.Message) {
	body, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b.buf[:0], m)
	if err != nil {
		b.err = errors.Join(b.err, err)
		return
	}
	b.buf = body
	b.bytes([]byte{letter})
	b.bytes(binary.AppendUvarint(nil, uint64(len(body))))
	b.bytes(body)
}
