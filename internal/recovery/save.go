package recovery

import (
	"context"
	"io"
	"maps"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/backup"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/shard"
)

// Bump is by how much revisions go on above those that are left: more than any cluster can have written that
// nothing is left of. Fencing tokens that the lost nodes gave out stay below all new ones.
const Bump = 1_000_000_000

// LostTTL is the time to live, in seconds, of leases whose grants are lost.
const LostTTL = shard.LostTTL

// chunk is about how many bytes of keys are read at a time.
const chunk = 1 << 20

// Save writes a backup of what was left, with what it takes to be restored.
func (r *Recovered) Save(ctx context.Context, w io.Writer) error {
	return backup.Save(w, r.Revision, func(b *backup.Writer) error {
		b.Bump(Bump)
		for _, id := range slices.Sorted(maps.Keys(r.Leases.TTLs)) {
			b.Lease(&pb.LeaseGrantRequest{ID: id, TTL: r.Leases.TTLs[id]})
		}
		b.Users(r.system.Auth.Messages())
		positions := keys.Positions(keys.Span{})
		pieces := r.system.Map.Locate(positions.Start, positions.End)
		for i, piece := range pieces {
			span := keys.Span{Start: []byte{0}}
			if i > 0 {
				span.Start = keys.AtPosition(piece.Start)
			}
			if i+1 < len(pieces) {
				span.End = keys.AtPosition(pieces[i+1].Start)
			}
			if err := r.savePiece(ctx, b, span, piece.Shard); err != nil {
				return err
			}
		}
		return nil
	})
}

// savePiece writes the keys of a span that one shard owns.
func (r *Recovered) savePiece(ctx context.Context, b *backup.Writer, span keys.Span, shardID uint64) error {
	v := r.data[shardID].Store().View()
	defer v.Close()
	all := &pb.RangeRequest{Key: span.Start, RangeEnd: span.RangeEnd()}
	return v.RangeChunks(ctx, all, chunk, func(resp *pb.RangeResponse) error {
		for _, kv := range resp.Kvs {
			if kv.Lease == 0 || !r.Leases.Ended(shardID, kv.Lease) {
				b.Key(kv)
			}
		}
		return b.Err()
	})
}
