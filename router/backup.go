package router

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"maps"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lease"
)

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
	s, err := r.backupState(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	b := &backup{out: bufio.NewWriterSize(io.MultiWriter(w, sum), 256<<10)}
	b.bytes([]byte(backupMagic))
	b.bytes(binary.AppendUvarint(nil, uint64(s.rev)))
	for _, id := range slices.Sorted(maps.Keys(s.leases)) {
		b.message(backupLease, &pb.LeaseGrantRequest{ID: id, TTL: s.leases[id].TTL})
	}
	if err := s.writeKeys(ctx, b); err != nil {
		return err
	}
	if err := errors.Join(b.err, b.out.Flush()); err != nil {
		return err
	}
	end := append([]byte{backupEnd, 4}, binary.BigEndian.AppendUint32(nil, sum.Sum32())...)
	_, err = w.Write(end)
	return err
}

// backupState is all keys at one revision, and the leases.
type backupState struct {
	*view
	leases map[int64]lease.Record
}

// backupState is the newest state, or what this node holds where there is no majority to prove
// what the newest is.
func (r *Router) backupState(ctx context.Context) (*backupState, error) {
	s := &backupState{leases: make(map[int64]lease.Record)}
	var all []reading
	for _, d := range r.shards {
		all = append(all, reading{d: d})
	}
	err := r.awaitLed(ctx, all)
	if err == nil {
		s, err = r.newestBackup(ctx, s)
	}
	// Where each shard has a leader, or seems to, it is no backup that could not be proved.
	if errors.Is(err, errNoLeader) || errors.Is(err, raft.ErrTimeout) && r.leaderless() {
		return r.heldBackup(s), nil
	}
	return s, err
}

// leaderless reports whether a shard has no leader that this node knows.
func (r *Router) leaderless() bool {
	for _, d := range r.shards {
		if d.Replica().Leader().ReplicaID == 0 {
			return true
		}
	}
	return false
}

// heldBackup is all that this node holds of each shard, which need not be of one revision.
func (r *Router) heldBackup(s *backupState) *backupState {
	s.view = &view{r: r, compacted: -1}
	for _, d := range r.shards {
		d.Replica().Between(func() {
			v := d.Store().View()
			s.rev = max(s.rev, v.Rev())
			s.views = append(s.views, opened{d, v})
			for _, rec := range d.Leases() {
				s.leases[rec.ID] = rec
			}
		})
	}
	return s
}

// newestBackup takes the leases before the view and with it, so that those are there which
// end meanwhile.
func (r *Router) newestBackup(ctx context.Context, s *backupState) (_ *backupState, err error) {
	take := func() {
		for _, d := range r.shards {
			for _, rec := range d.Leases() {
				s.leases[rec.ID] = rec
			}
		}
	}
	if d, err := r.whole(); err == nil && !d.Shape().Ordered {
		if err := r.confirm(ctx, d); err != nil {
			return s, err
		}
		d.Replica().Between(func() {
			v := d.Store().View()
			s.view = &view{rev: v.Rev(), views: []opened{{d, v}}, r: r}
			take()
		})
		return s, nil
	}
	take()
	if s.view, err = r.openView(ctx, []keys.Span{{}}, fresh{}); err != nil {
		return s, err
	}
	take()
	return s, nil
}

// writeKeys writes the keys. A lease that came and went while the view was opened is
// written with the shortest life, before the first of its keys.
func (s *backupState) writeKeys(ctx context.Context, b *backup) error {
	parts, err := s.r.parts(keys.Span{})
	if err != nil {
		return err
	}
	for _, p := range parts {
		all := &pb.RangeRequest{Key: p.span.Start, RangeEnd: p.span.RangeEnd()}
		if len(all.Key) == 0 {
			all.Key = []byte{0}
		}
		err := s.ofShard(p.d).RangeChunks(ctx, all, backupChunk, func(chunk *pb.RangeResponse) error {
			for _, kv := range chunk.Kvs {
				if _, known := s.leases[kv.Lease]; kv.Lease != 0 && !known {
					s.leases[kv.Lease] = lease.Record{ID: kv.Lease, TTL: 1}
					b.message(backupLease, &pb.LeaseGrantRequest{ID: kv.Lease, TTL: 1})
				}
				b.message(backupKey, kv)
			}
			return b.err
		})
		if err != nil {
			return err
		}
	}
	return nil
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
