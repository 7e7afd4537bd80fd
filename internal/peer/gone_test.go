package peer

import (
	"testing"
	"time"
)

// A node is gone when nobody listens where it was, and only then: not when its
// connections break or lead nowhere.
func TestGoneNodeIsTold(t *testing.T) {
	gone := make(chan uint64, 16)
	n := start(t, func(c *Config) {
		if c.Node == 1 {
			c.Gone = func(node uint64) { gone <- node }
		}
	})
	reached := func(node uint64) func() bool {
		return func() bool { return n.meshes[1].Reached(node) }
	}
	for _, node := range []uint64{2, 3} {
		n.meshes[1].Reach(node)
		until(t, "the other node", reached(node))
	}
	n.doors[3].cut()
	n.doors[3].shut(true)
	until(t, "the connection to break", func() bool { return !n.meshes[1].Reached(3) })
	n.meshes[2].Close()
	select {
	case node := <-gone:
		if node != 2 {
			t.Errorf("node %d is told to be gone", node)
		}
	case <-time.After(testTimeout):
		t.Fatal("nobody was told that node 2 is gone")
	}
	n.doors[3].shut(false)
	until(t, "node 3 again", reached(3))
	select {
	case node := <-gone:
		t.Errorf("node %d is told to be gone", node)
	default:
	}
}
