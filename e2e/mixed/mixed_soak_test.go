//go:build soak

package mixed

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/latchkey-db/latchkey/e2e/faults"
)

// forVariable is how long each run of TestMixedForLong lasts, in place of longRun.
const (
	forVariable = "LATCHKEY_E2E_MIXED_FOR"
	longRun     = 3 * time.Minute
)

// TestMixed for long, on one node and three, with one shard and four, and with whatever befalls
// nodes.
func TestMixedForLong(t *testing.T) {
	length := longRun
	if s := os.Getenv(forVariable); s != "" {
		var err error
		length, err = time.ParseDuration(s)
		must(t, err)
	}
	// A single node has no links to others.
	alone := []string{"kill", "stop", "freeze", "stuck-disk", "slow-fsync"}
	for nodes, kinds := range map[int][]string{1: alone, 3: nil} {
		kinds, left, err := faults.Choose(kinds)
		must(t, err)
		if len(left) > 0 {
			t.Logf("left out: %s", strings.Join(left, ", "))
		}
		for _, shards := range []int{1, 4} {
			t.Run(fmt.Sprintf("%d nodes, %d shards", nodes, shards), func(t *testing.T) {
				n := &faults.Nemesis{Kinds: kinds, Longest: 8 * time.Second, Rest: 2 * time.Second}
				mix(t, nodes, shards, n, func(n *faults.Nemesis, seed uint64) error {
					ctx, cancel := context.WithTimeout(t.Context(), length)
					defer cancel()
					return n.Run(ctx, seed)
				})
			})
		}
	}
}
