package sim

import (
	"testing"
	"time"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// A Finish waits for what its shard has to write next, and that the longer the slower the shard has been. Who waits for it has it go
// at once: a write, and reads, also on another node than the leader's.
func TestFinishThatIsAwaited(t *testing.T) {
	// held returns how long a key is held when its transaction has been answered, and meanwhile something is done.
	held := func(do func(c *cluster)) (took time.Duration) {
		coordinated(t, func(c *cluster) {
			t := c.tb
			c.slowApply(3, shardB, 50*time.Millisecond)
			c.node(3).put(t, "b/y", "")
			c.slowApply(3, shardB, 0)
			if _, err := c.node(1).txn(t.Context(), puts("a/x", "b/x")).wait(); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			done := meanwhile(func() (any, error) {
				do(c)
				return nil, nil
			})
			for len(c.node(3).shards[shardB].Store().Met(nil, []keys.Span{keys.Point([]byte("b/x"))})) > 0 {
				time.Sleep(100 * time.Microsecond)
			}
			took = time.Since(began)
			_, _ = done.wait()
		})
		return took
	}
	const awaited = 5 * time.Millisecond
	if took := held(func(*cluster) {}); took < awaited {
		t.Fatalf("it is held for %v though nobody waits; the runs show nothing", took)
	}
	for name, wait := range map[string]func(c *cluster){
		"a write":                func(c *cluster) { c.node(2).put(c.tb, "b/x", "") },
		"a read":                 func(c *cluster) { c.node(3).read(c.tb, "b/x", "b/y") },
		"a read on another node": func(c *cluster) { c.node(1).read(c.tb, "b/x", "b/y") },
		"a read of all":          func(c *cluster) { c.node(1).read(c.tb, "a", "z") },
	} {
		if took := held(wait); took > awaited {
			t.Errorf("%s waits, and it is held for %v", name, took)
		}
	}
}
