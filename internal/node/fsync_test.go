package node

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	raftvfs "github.com/lni/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// syncCounter counts the fsyncs of the Raft logs.
type syncCounter struct{ n atomic.Int64 }

func (c *syncCounter) MaybeError(op raftvfs.Op) error {
	if op == raftvfs.OpSync {
		c.n.Add(1)
	}
	return nil
}

// No write is acknowledged before its batch was fsynced, and writes that come
// together share the fsync.
func TestFsyncPerAcknowledgedBatch(t *testing.T) {
	syncs := &syncCounter{}
	n := startNode(t, vfs.NewMem(), raftvfs.Wrap(raftvfs.NewMem(), syncs))
	c := &crashable{t: t, node: n}
	defer c.stop()
	put := func(key string) {
		if _, err := n.router.Put(t.Context(), &pb.PutRequest{Key: []byte(key)}); err != nil {
			t.Error(err)
		}
	}
	const alone = 100
	before := syncs.n.Load()
	for i := range alone {
		put(fmt.Sprint(i))
	}
	if got := syncs.n.Load() - before; got < alone {
		t.Errorf("%d fsyncs for %d writes, one after the other", got, alone)
	}
	const clients, each = 64, 20
	before = syncs.n.Load()
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for j := range each {
				put(fmt.Sprintf("%d/%d", i, j))
			}
		})
	}
	wg.Wait()
	got := syncs.n.Load() - before
	t.Logf("%d fsyncs for %d writes of %d clients", got, clients*each, clients)
	if got == 0 || got > clients*each {
		t.Errorf("%d fsyncs for %d writes of %d clients", got, clients*each, clients)
	}
}
