package mvcc

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// RangeOver answers a range request as a store would at revision rev whose current keys in the
// request's span are kvs. The request's own revision does not count.
func RangeOver(ctx context.Context, kvs []*mvccpb.KeyValue, rev int64, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	r := reader{cur: newTree(), rev: rev, top: rev, counters: new(counters)}
	span := keys.FromRange(req.Key, req.RangeEnd)
	for _, kv := range kvs {
		if !span.Contains(kv.Key) {
			continue
		}
		it := &item{
			key: kv.Key, value: kv.Value, size: int32(len(kv.Value)),
			create: kv.CreateRevision, mod: kv.ModRevision, version: kv.Version, lease: kv.Lease,
		}
		r.cur.Set(it)
	}
	now := &pb.RangeRequest{
		Key: req.Key, RangeEnd: req.RangeEnd, Limit: req.Limit, SortOrder: req.SortOrder, SortTarget: req.SortTarget,
		KeysOnly: req.KeysOnly, CountOnly: req.CountOnly,
		MinModRevision: req.MinModRevision, MaxModRevision: req.MaxModRevision,
		MinCreateRevision: req.MinCreateRevision, MaxCreateRevision: req.MaxCreateRevision,
	}
	return r.rangeKeys(ctx, now)
}
