package placement

import (
	"testing"

	"pgregory.net/rapid"
)

// However the leaders lie and whichever nodes act at the same time, they end up spread
// evenly over the fit nodes, and then stay where they are.
func TestHandoversSpreadLeaders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := []uint64{11, 12, 13, 14, 15}[:rapid.IntRange(1, 5).Draw(t, "nodes")]
		fit := nodes[:rapid.IntRange(1, len(nodes)).Draw(t, "fit")]
		var leads []Lead
		for s := range rapid.IntRange(0, 40).Draw(t, "shards") {
			leads = append(leads, Lead{uint64(s), rapid.SampledFrom(nodes).Draw(t, "leader")})
		}
		for range 200 {
			var next []Handover
			for _, self := range fit {
				if h, ok := NextHandover(self, leads, fit); ok && rapid.IntRange(0, 3).Draw(t, "late") > 0 {
					next = append(next, h)
				}
			}
			for _, h := range next {
				for i := range leads {
					if leads[i].Shard == h.Shard {
						leads[i].Node = h.To
					}
				}
			}
		}
		count := make(map[uint64]int)
		for _, l := range leads {
			count[l.Node]++
		}
		for _, a := range fit {
			if h, ok := NextHandover(a, leads, fit); ok {
				t.Fatalf("still moving: %+v of %v", h, leads)
			}
			for _, b := range fit {
				if count[a] > count[b]+1 {
					t.Fatalf("node %d leads %d, node %d leads %d", a, count[a], b, count[b])
				}
			}
		}
	})
}
