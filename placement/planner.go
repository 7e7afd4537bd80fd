package placement

import (
	"maps"
	"slices"
)

// Lead says which node leads a shard.
type Lead struct {
	Shard, Node uint64
}

// Handover is a leadership that a node should give to another.
type Handover struct {
	Shard, To uint64
}

// NextHandover returns the leadership that node self should hand over so that the
// leaders of shards are spread evenly over nodes, those fit to lead, self among
// them. ok is false when they are, or when it is for others to act: a node acts only if
// it leads at least two shards more than the one that leads the fewest, so that nodes
// that act side by side don't pass leaderships back and forth.
func NextHandover(self uint64, leads []Lead, nodes []uint64) (h Handover, ok bool) {
	count := make(map[uint64]int, len(nodes))
	for _, n := range nodes {
		count[n] = 0
	}
	var mine []uint64
	for _, l := range leads {
		if _, fit := count[l.Node]; fit {
			count[l.Node]++
		}
		if l.Node == self {
			mine = append(mine, l.Shard)
		}
	}
	var to uint64
	for _, n := range slices.Sorted(maps.Keys(count)) {
		if n != self && (to == 0 || count[n] < count[to]) {
			to = n
		}
	}
	if to == 0 || len(mine) < count[to]+2 {
		return h, false
	}
	// Nodes that start together pick different shards for the same target.
	return Handover{Shard: mine[int(to%uint64(len(mine)))], To: to}, true
}
