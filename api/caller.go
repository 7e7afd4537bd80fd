package api

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"google.golang.org/grpc"

	"github.com/latchkey-db/latchkey/mvcc"
)

// callers makes the clients through which Lock and Election use the other services
// of this server. Requests go there without a connection, under the context of the
// call that they belong to, so that they have its metadata and its rights.
type callers struct {
	kv      pb.KVServer
	watch   pb.WatchServer
	lease   pb.LeaseServer
	watches Watches
	streams *streams
}

// caller is the client of one Lock or Election call. Each call has its own, so
// that no call sees a watch that was opened with the rights of another, and no
// waiter wakes up for another's event.
type caller struct {
	pb.KVClient

	client  *clientv3.Client
	watches Watches
	// expired ends the call. The guard calls it when key has gone.
	expired func()
	// done gives back what the call holds of the server.
	done func()
	// running counts the guard and the watch handlers of the call.
	running sync.WaitGroup

	// key is the key that the call competes with, and rev its create revision,
	// from the call's first transaction on. Only the call's goroutine uses them
	// and what follows.
	key []byte
	rev int64
	// guarded is set when the call has met a predecessor and so waits.
	guarded bool
	// left is set before the call deletes its key itself.
	left atomic.Bool
	// held tells whether the last read of key found what the call had put there.
	held bool
}

// open returns the client of a call, and the context that the call goes on under:
// it ends with the server, and with lost where the call waits and its own key is
// deleted. The caller closes the client.
func (cs *callers) open(ctx context.Context, lost error) (context.Context, *caller, error) {
	ctx, done, err := cs.streams.open(ctx, false)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	c := &caller{
		KVClient: adapter.KvServerToKvClient(cs.kv),
		watches:  cs.watches,
		expired:  func() { cancel(lost) },
		done:     func() { cancel(nil); done() },
	}
	// What a call cleans up when its context has ended goes under the client's.
	c.client = clientv3.NewCtxClient(context.WithoutCancel(ctx))
	c.client.KV = clientv3.NewKVFromKVClient(c, c.client)
	c.client.Lease = orphans{
		clientv3.NewLeaseFromLeaseClient(adapter.LeaseServerToLeaseClient(cs.lease), c.client, time.Second),
	}
	c.client.Watcher = waits{
		clientv3.NewWatchFromWatchClient(&countedWatch{server: cs.watch, running: &c.running}, c.client), c,
	}
	return ctx, c, nil
}

// close ends the watches of the call. It returns when nothing of it runs.
func (c *caller) close() {
	c.done()
	_ = c.client.Close() // says only that the client's context has ended
	c.running.Wait()
}

// Txn passes on a transaction. The first is the one by which the call makes, or
// finds, the key that it competes with.
func (c *caller) Txn(ctx context.Context, r *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	resp, err := c.KVClient.Txn(ctx, r, opts...)
	if err != nil || c.key != nil || len(r.GetCompare()) == 0 {
		return resp, err
	}
	c.key, c.rev = r.GetCompare()[0].GetKey(), resp.GetHeader().GetRevision()
	if !resp.GetSucceeded() && len(resp.GetResponses()) > 0 {
		for _, kv := range resp.GetResponses()[0].GetResponseRange().GetKvs() {
			c.rev = kv.GetCreateRevision()
		}
	}
	return resp, nil
}

// Range passes on a read. One of the call's own key tells whether it is still
// there; any other that finds a key has found a predecessor.
func (c *caller) Range(ctx context.Context, r *pb.RangeRequest, opts ...grpc.CallOption) (*pb.RangeResponse, error) {
	resp, err := c.KVClient.Range(ctx, r, opts...)
	if err != nil || c.key == nil {
		return resp, err
	}
	if bytes.Equal(r.GetKey(), c.key) && len(r.GetRangeEnd()) == 0 {
		c.held = c.finds(resp)
	} else if len(resp.GetKvs()) > 0 && !c.guarded {
		c.guarded = true
		key, rev := c.key, c.rev
		c.running.Go(func() { c.guard(ctx, key, rev) })
	}
	return resp, nil
}

// DeleteRange passes on a deletion. That of the call's own key deletes only what
// the call had put there, not what another call of the same lease has put since.
func (c *caller) DeleteRange(
	ctx context.Context, r *pb.DeleteRangeRequest, opts ...grpc.CallOption,
) (*pb.DeleteRangeResponse, error) {
	if c.key == nil || !bytes.Equal(r.GetKey(), c.key) || len(r.GetRangeEnd()) != 0 {
		return c.KVClient.DeleteRange(ctx, r, opts...)
	}
	c.left.Store(true)
	resp, err := c.KVClient.Txn(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{{
			Target: pb.Compare_CREATE, Key: c.key, TargetUnion: &pb.Compare_CreateRevision{CreateRevision: c.rev},
		}},
		Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}},
	}, opts...)
	if err != nil {
		return nil, err
	}
	return &pb.DeleteRangeResponse{Header: resp.GetHeader()}, nil
}

// leave takes the call that failed out of the queue that it stands in.
func (c *caller) leave() {
	if c.key != nil {
		_, _ = c.client.Delete(c.client.Ctx(), string(c.key)) // the call has failed already
	}
}

// finds tells whether a read of the call's key found what the call had put there.
func (c *caller) finds(resp *pb.RangeResponse) bool {
	return len(resp.GetKvs()) == 1 && resp.GetKvs()[0].GetCreateRevision() == c.rev
}

// keeps tells whether a call that has waited still has its key, by a read. One
// that has not waited has just made it, or found it the first of all.
func (c *caller) keeps(ctx context.Context) (bool, error) {
	if !c.guarded || c.held {
		return true, nil
	}
	_, err := c.client.Get(ctx, string(c.key))
	return c.held, err
}

// guard ends the call when key, created at rev, is deleted by others. It returns when the
// call's context ends.
func (c *caller) guard(ctx context.Context, key []byte, rev int64) {
	start := rev + 1
	for {
		gone, err := c.await(ctx, key, start)
		if err != nil {
			return
		}
		if !gone {
			// The history up to here was compacted away: look again, and go on from
			// what was seen.
			resp, err := c.KVClient.Range(ctx, &pb.RangeRequest{Key: key})
			if err != nil {
				return // the waiting call meets the same error
			}
			gone = len(resp.GetKvs()) != 1 || resp.GetKvs()[0].GetCreateRevision() != rev
			start = resp.GetHeader().GetRevision() + 1
		}
		if gone {
			if !c.left.Load() {
				c.expired()
			}
			return
		}
	}
}

// await waits for the deletion of key from revision start on, and reports whether there
// was one: false where compaction came in between. Its error says that the watch or ctx
// has ended.
func (c *caller) await(ctx context.Context, key []byte, start int64) (gone bool, err error) {
	const only = 1
	group := c.watches.NewWatchGroup()
	defer group.Close()
	group.Add(only, mvcc.WatchOptions{Key: key, Start: start, NoPut: true})
	for {
		batch, ok, err := group.Poll()
		switch {
		case err != nil:
			return false, err
		case ok && batch.CompactRev != 0:
			return false, nil
		case ok && len(batch.Events) > 0:
			return true, nil
		case ok:
			continue
		}
		select {
		case <-group.Ready():
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// waits is the watcher of a call's client. The one key that a call in a queue watches is
// its predecessor's.
type waits struct {
	clientv3.Watcher

	c *caller
}

// Watch tells a call in a queue when to look for its predecessor again: when that has gone,
// and when what has become of it can't be told from the history, be it compacted or the
// watch over. A watch of anything else is the server's.
func (w waits) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	op := clientv3.OpGet(key, opts...)
	if w.c.key == nil || len(op.RangeBytes()) > 0 {
		return w.Watcher.Watch(ctx, key, opts...)
	}
	look := make(chan clientv3.WatchResponse, 1)
	w.c.running.Go(func() {
		defer close(look)
		if _, err := w.c.await(ctx, op.KeyBytes(), op.Rev()); err == nil || ctx.Err() == nil {
			look <- clientv3.WatchResponse{Events: []*clientv3.Event{{Type: mvccpb.Event_DELETE}}}
		}
	})
	return look
}

// countedWatch is a Watch client over the service of this process that counts the
// handlers it starts.
type countedWatch struct {
	server  pb.WatchServer
	running *sync.WaitGroup
}

// Watch opens a stream.
func (w *countedWatch) Watch(ctx context.Context, opts ...grpc.CallOption) (pb.Watch_WatchClient, error) {
	w.running.Add(1)
	return adapter.WatchServerToWatchClient(countedWatchServer{WatchServer: w.server, done: w.running.Done}).Watch(ctx, opts...)
}

// countedWatchServer serves one stream that has been counted.
type countedWatchServer struct {
	pb.WatchServer

	done func()
}

// Watch serves the stream.
func (s countedWatchServer) Watch(stream pb.Watch_WatchServer) error {
	defer s.done()
	return s.WatchServer.Watch(stream)
}

// orphans grants leases that nobody renews, which is what sessions of Lock and
// Election are: the client renews its lease, or lets it end.
type orphans struct{ clientv3.Lease }

// KeepAlive renews nothing. Its channel is closed when ctx ends.
func (orphans) KeepAlive(ctx context.Context, _ clientv3.LeaseID) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
	renewed := make(chan *clientv3.LeaseKeepAliveResponse)
	context.AfterFunc(ctx, func() { close(renewed) })
	return renewed, nil
}
