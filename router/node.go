package router

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/mvcc"
)

// Revision returns the newest revision that this node knows, and none below what
// clients have seen from it. It counts as seen.
func (r *Router) Revision() int64 {
	for _, d := range r.shards {
		raiseTo(&r.shown, d.Store().Rev())
	}
	return r.shown.Load()
}

// ReadOwn reads of every shard what this node holds of it, and asks nobody.
func (r *Router) ReadOwn(ctx context.Context) error {
	for _, d := range r.shards {
		v := d.Store().View()
		_, err := v.Range(ctx, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Limit: 1})
		v.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// DBSize returns the logical size in bytes of all retained versions and leases on this
// node.
func (r *Router) DBSize() int64 {
	var size int64
	for _, d := range r.shards {
		size += d.Store().Size() + d.LeaseSize()
	}
	return size
}

// Sizes returns the logical sizes in bytes of all retained versions, and of the current ones, on
// this node, each with the leases. They are of one state of each shard: the first is not below
// the second.
func (r *Router) Sizes() (retained, current int64) {
	for _, d := range r.shards {
		leases := d.LeaseSize()
		v := d.Store().View()
		retained, current = retained+v.Size()+leases, current+v.LiveSize()+leases
		v.Close()
	}
	return retained, current
}

// HashKV hashes the keys as they were at rev, 0 for the newest revision, as this node
// holds them. A compaction up to rev changes nothing about it.
func (r *Router) HashKV(ctx context.Context, rev int64) (resp *pb.HashKVResponse, err error) {
	err = r.hash(ctx, max(rev, 0), func(l *view) error {
		resp = &pb.HashKVResponse{Header: &pb.ResponseHeader{Revision: l.rev}}
		var sum uint32
		sum, err = l.sum(func(v *mvcc.View) (part uint32, err error) {
			part, resp.CompactRevision, resp.HashRevision, err = v.HashKV(rev)
			return part, err
		})
		resp.Hash = sum
		return err
	})
	if err != nil {
		return nil, err
	}
	r.noteShown(resp.Header)
	return resp, nil
}

// Hash hashes everything that this node's replicas retain.
func (r *Router) Hash(ctx context.Context) (sum uint32, err error) {
	err = r.hash(ctx, 0, func(l *view) error {
		sum, err = l.sum((*mvcc.View).Hash)
		return err
	})
	return sum, err
}

// hash calls fn with all keys at one revision. The only shard of a cluster is looked
// at as it is here.
func (r *Router) hash(ctx context.Context, rev int64, fn func(*view) error) error {
	for {
		l, err := r.openView(ctx, []keys.Span{{}}, fresh{serializable: len(r.shards) == 1, rev: rev})
		if err != nil {
			return err
		}
		err = fn(l)
		l.close()
		if !errors.Is(err, mvcc.ErrReplaced) {
			return err
		}
	}
}

// sum puts the hashes of the shards together, in the order of their keys.
func (l *view) sum(one func(*mvcc.View) (uint32, error)) (uint32, error) {
	if v := l.only(); v != nil {
		return one(v)
	}
	parts, err := l.r.parts(keys.Span{})
	if err != nil {
		return 0, err
	}
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	for _, p := range parts {
		sum, err := one(l.ofShard(p.d))
		if err != nil {
			return 0, err
		}
		if err := binary.Write(h, binary.BigEndian, sum); err != nil {
			return 0, err
		}
	}
	return h.Sum32(), nil
}

// Defragment gives the space of removed records back to the disk. Requests are
// served meanwhile.
func (r *Router) Defragment(ctx context.Context) error { return r.compact(ctx) }
