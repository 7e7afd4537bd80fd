package node

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	raftvfs "github.com/lni/vfs"

	"github.com/latchkey-db/latchkey/internal/datadir"
)

// cuts are what power cuts at several moments would leave of a file system.
type cuts struct {
	fs  *vfs.MemFS
	rnd *rand.Rand

	mu sync.Mutex
	// left is protected by mu.
	left []*vfs.MemFS
}

// MaybeError is told of each operation before it takes place, and has it succeed.
func (c *cuts) MaybeError(op errorfs.Op) error {
	kinds := []errorfs.OpKind{
		errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo, errorfs.OpRename, errorfs.OpRemove, errorfs.OpRemoveAll,
	}
	if slices.Contains(kinds, op.Kind) {
		c.mu.Lock()
		defer c.mu.Unlock()
		cfg := vfs.CrashCloneCfg{UnsyncedDataPercent: c.rnd.IntN(101), RNG: rand.New(rand.NewPCG(c.rnd.Uint64(), 1))}
		c.left = append(c.left, c.fs.CrashClone(cfg))
	}
	return nil
}

// String names the injector.
func (c *cuts) String() string { return "cuts" }

// whole reports whether the data directory on a file system says that its first start is over.
func whole(t *testing.T, fs vfs.FS) bool {
	t.Helper()
	f, err := fs.Open("/latchkey/node.json")
	check(t, err)
	b, err := io.ReadAll(f)
	check(t, err)
	check(t, f.Close())
	var id datadir.Identity
	check(t, json.Unmarshal(b, &id))
	return id.Whole
}

// Wherever the power is cut in the first start of a restored node, the next one has all that was
// restored, in each shard.
func TestRestoredStartCutAnywhere(t *testing.T) {
	t.Parallel() // most of the time it waits
	const splits = "--initial-splits=b,c,d"
	c := &crashable{t: t, node: startNode(t, vfs.NewMem(), raftvfs.NewMem())}
	fill(c)
	want, err := c.everything(0)
	check(t, err)
	users, err := c.node.router.ConfirmUsers(t.Context())
	check(t, err)
	file := saved(t, c.node)
	c.stop()

	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	disk := &cuts{fs: vfs.NewCrashableMem(), rnd: rand.New(rand.NewPCG(seed, 0))}
	check(t, Restore(parsed(t, splits), disk.fs, copyOf(file), datadir.Restore{}))
	logs := raftvfs.NewMem()
	c.node = startNode(t, errorfs.Wrap(disk.fs, disk), logs)
	c.stop()
	before, after := 0, 0
	for i, left := range disk.left {
		// While the directory is not whole nothing in it is worth keeping, the logs included. Afterwards they
		// have at least what the state has.
		now := logs
		if whole(t, left) {
			after++
		} else {
			before++
			now = raftvfs.NewMem()
		}
		if testing.Short() && i%5 != 0 {
			continue
		}
		c.node = startNode(t, left, now)
		c.same(want, users)
		if _, err := left.Stat("/latchkey/restore"); err == nil {
			t.Errorf("cut %d: the backup is still there", i)
		}
		c.stop()
		if t.Failed() {
			t.Fatalf("cut %d of %d", i, len(disk.left))
		}
	}
	t.Logf("%d cuts before the directory was whole, %d after", before, after)
	if before < 5 || after < 2 {
		t.Errorf("%d cuts before the directory was whole and %d after are too few", before, after)
	}
}
