package shard

import (
	"bytes"
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// standsBehind reports whether a request makes a key in a queue in which another is before it, as far
// as this replica knows: whoever sent it waits for that to go. So its entry may wait for the next, which is
// at the latest the one that makes it the first. This is how locks are asked for, by package lock and by
// etcd's Mutex: the key, unless it is there, and a look at who was created first beside it.
func (d *Data) standsBehind(ctx context.Context, request proto.Message) bool {
	txn, ok := request.(*pb.TxnRequest)
	if !ok || len(txn.Compare) != 1 || len(txn.Success) < 2 {
		return false
	}
	c, put, first := txn.Compare[0], txn.Success[0].GetRequestPut(), txn.Success[1].GetRequestRange()
	switch {
	case c.Target != pb.Compare_CREATE, c.Result != pb.Compare_EQUAL, c.GetCreateRevision() != 0:
		return false
	case put == nil, !bytes.Equal(put.Key, c.Key), len(c.RangeEnd) > 0:
		return false
	case first == nil, first.SortTarget != pb.RangeRequest_CREATE, first.SortOrder != pb.RangeRequest_ASCEND, first.Limit != 1,
		!keys.FromRange(first.Key, first.RangeEnd).Contains(put.Key):
		return false
	}
	v := d.store.View()
	defer v.Close()
	resp, err := v.Range(ctx, &pb.RangeRequest{
		Key: first.Key, RangeEnd: first.RangeEnd, SortTarget: first.SortTarget, SortOrder: first.SortOrder, Limit: 1, KeysOnly: true,
	})
	return err == nil && len(resp.Kvs) > 0
}
