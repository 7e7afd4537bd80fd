package mvcc

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// RangeStream answers a range request in chunks whose keys and values stay
// below about maxBytes each, so that the whole answer is never in memory. The
// header, more and count come with the last chunk; count_only and an empty
// answer make a single one. A request with a sort order or with filters is
// answered in one chunk. An error of emit ends the stream and is returned.
//
// The view is closed while emit runs, and afterwards, so that a slow client does
// not keep Sweep from its work: a compaction above the revision that is being
// read ends the stream with ErrCompacted.
func (v *View) RangeStream(ctx context.Context, req *pb.RangeRequest, maxBytes int, emit func(*pb.RangeResponse) error) error {
	defer v.Close()
	if req.CountOnly || len(req.RangeEnd) == 0 || hasFilters(req) ||
		req.SortTarget != pb.RangeRequest_KEY || req.SortOrder == pb.RangeRequest_DESCEND {
		resp, err := v.Range(ctx, req)
		if err != nil {
			return err
		}
		v.Close()
		return emit(resp)
	}
	if err := v.checkRev(req.Revision); err != nil {
		return err
	}
	c := chunker{
		v: v, req: req, rest: keys.FromRange(req.Key, req.RangeEnd), maxBytes: maxBytes,
		maxKeys: firstChunkKeys, past: req.Revision > 0 && req.Revision < v.rev,
	}
	for {
		resp, last, err := c.next(ctx)
		if err := v.settle(err); err != nil {
			return err
		}
		v.Close()
		if err := emit(resp); err != nil || last {
			return err
		}
		if err := v.reopen(c.rev()); err != nil {
			return err
		}
	}
}

// firstChunkKeys bounds the first chunk, so that it comes soon; each following
// one may hold twice as many keys.
const firstChunkKeys = 10

// chunker cuts the answer to a request into chunks.
type chunker struct {
	v    *View
	req  *pb.RangeRequest
	past bool
	// rest is what is still to be read and sent the number of keys returned.
	rest     keys.Span
	sent     int64
	maxKeys  int
	maxBytes int
}

// rev returns the revision that is read.
func (c *chunker) rev() int64 {
	if c.past {
		return c.req.Revision
	}
	return c.v.rev
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
	c.maxKeys *= 2
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
		err = c.v.eachPast(ctx, c.rest, c.req.Revision, func(v *pastVersion) bool {
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
	err := c.v.eachPast(ctx, c.rest, c.req.Revision, func(*pastVersion) bool {
		n++
		return true
	})
	return n, err
}
