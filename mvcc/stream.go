package mvcc

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// RangeChunks answers a range request in chunks whose keys and values stay
// below about maxBytes each, so that the whole answer is never in memory. The
// header, more and count come with the last chunk; count_only and an empty
// answer make a single one. A request with a sort order or with filters is
// answered in one chunk. An error of emit ends the stream and is returned.
func (v *View) RangeChunks(ctx context.Context, req *pb.RangeRequest, maxBytes int, emit func(*pb.RangeResponse) error) error {
	return v.chunks(ctx, req, maxBytes, func(resp *pb.RangeResponse, _ int64, _ bool) error { return emit(resp) })
}

// RangeStream is RangeChunks for answers that leave at the pace of a client: so
// that a slow one does not keep Sweep from its work, the view is closed while
// emit runs and when RangeStream returns. A compaction above the revision that
// is being read ends the stream with ErrCompacted.
func (v *View) RangeStream(ctx context.Context, req *pb.RangeRequest, maxBytes int, emit func(*pb.RangeResponse) error) error {
	defer v.Close()
	return v.chunks(ctx, req, maxBytes, func(resp *pb.RangeResponse, rev int64, last bool) error {
		v.Close()
		if err := emit(resp); err != nil || last {
			return err
		}
		return v.reopen(rev)
	})
}

// chunks calls emit with each chunk of the answer to req, the revision that is
// being read, and whether the chunk is the last.
func (v *View) chunks(
	ctx context.Context, req *pb.RangeRequest, maxBytes int, emit func(resp *pb.RangeResponse, rev int64, last bool) error,
) error {
	if err := v.checkRev(req.Revision); err != nil {
		return err
	}
	c := chunker{v: v, req: req, maxBytes: maxBytes, maxKeys: firstChunkKeys}
	c.rev, c.past = v.at(req)
	if req.CountOnly || len(req.RangeEnd) == 0 || hasFilters(req) ||
		req.SortTarget != pb.RangeRequest_KEY || req.SortOrder == pb.RangeRequest_DESCEND {
		resp, err := v.Range(ctx, req)
		if err != nil {
			return err
		}
		return emit(resp, c.rev, true)
	}
	c.rest = keys.FromRange(req.Key, req.RangeEnd)
	for {
		resp, last, err := c.next(ctx)
		if err := v.settle(err); err != nil {
			return err
		}
		if err := emit(resp, c.rev, last); err != nil || last {
			return err
		}
	}
}

// firstChunkKeys bounds the first chunk, so that it comes soon; each following
// one may hold twice as many keys, up to maxChunkKeys.
const (
	firstChunkKeys = 10
	maxChunkKeys   = firstChunkKeys << 16
)

// chunker cuts the answer to a request into chunks.
type chunker struct {
	v   *View
	req *pb.RangeRequest
	// rev is the revision that is read, past whether it is not the newest.
	rev  int64
	past bool
	// rest is what is still to be read and sent the number of keys returned.
	rest     keys.Span
	sent     int64
	maxKeys  int
	maxBytes int
}

// next returns the next chunk and whether it is the last.
func (c *chunker) next(ctx context.Context) (resp *pb.RangeResponse, last bool, err error) {
	items, more, err := c.items(ctx)
	if err != nil {
		return nil, false, err
	}
	resp = &pb.RangeResponse{}
	if resp.Kvs, err = c.v.kvs(ctx, c.req, items); err != nil {
		return nil, false, err
	}
	c.sent += int64(len(items))
	c.maxKeys = min(2*c.maxKeys, maxChunkKeys)
	if more {
		c.rest.Start = keys.Next(items[len(items)-1].key)
	}
	if more && c.sent != c.req.Limit {
		return resp, false, nil
	}
	resp.Header = &pb.ResponseHeader{Revision: c.v.rev}
	resp.More = more
	resp.Count = c.sent
	if more {
		n, err := c.remaining(ctx)
		if err != nil {
			return nil, false, err
		}
		resp.Count += int64(n)
	}
	return resp, true, nil
}

// items returns the versions of the next chunk, at least one if there is any,
// and whether more follow them.
func (c *chunker) items(ctx context.Context) (items []*item, more bool, err error) {
	room, size := c.maxKeys, 0
	if c.req.Limit > 0 {
		room = int(min(int64(room), c.req.Limit-c.sent))
	}
	// fits counts a version in, or says that the chunk is full.
	fits := func(key, value int) bool {
		size += key + versionOverhead
		if !c.req.KeysOnly {
			size += value
		}
		more = len(items) == room || len(items) > 0 && size > c.maxBytes
		return !more
	}
	if c.past {
		err = c.v.eachPast(ctx, c.rest, c.rev, func(v *pastVersion) bool {
			ok := fits(len(v.key), len(v.rec.value))
			if ok {
				items = append(items, v.item())
			}
			return ok
		})
		return items, more, err
	}
	c.v.ascend(c.rest, func(it *item) bool {
		ok := fits(len(it.key), int(it.size))
		if ok {
			items = append(items, it)
		}
		return ok
	})
	return items, more, ctx.Err()
}

// remaining counts the keys in what is still to be read.
func (c *chunker) remaining(ctx context.Context) (int, error) {
	if !c.past {
		return c.v.count(c.rest), nil
	}
	n := 0
	err := c.v.eachPast(ctx, c.rest, c.rev, func(*pastVersion) bool {
		n++
		return true
	})
	return n, err
}
