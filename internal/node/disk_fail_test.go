package node

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	raftvfs "github.com/lni/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

var errDisk = errors.New("no space left on device")

// A node whose state can't be written any more says so and asks to be stopped,
// instead of stalling for ever.
func TestFailingStateDiskFailsTheNode(t *testing.T) {
	var failing atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if failing.Load() && op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") {
			return errDisk
		}
		return nil
	}))
	n := startNode(t, fs, raftvfs.NewMem())
	c := &crashable{t: t, node: n}
	defer c.stop()
	defer failing.Store(false)
	failing.Store(true)
	value := make([]byte, 256<<10)
	deadline := time.After(time.Minute)
	for i := 0; ; i++ {
		select {
		case err := <-n.Failed():
			if !errors.Is(err, errDisk) || !strings.Contains(err.Error(), n.dir.State()) {
				t.Errorf("%v, want %v and the directory", err, errDisk)
			}
			return
		case <-deadline:
			t.Fatal("the node does not fail")
		default:
		}
		if i < 100 {
			if _, err := n.router.Put(t.Context(), &pb.PutRequest{Key: fmt.Append(nil, i), Value: value}); err != nil {
				t.Logf("put %d: %v", i, err)
			}
		} else {
			time.Sleep(10 * time.Millisecond)
		}
	}
}
