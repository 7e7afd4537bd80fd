package router

import (
	"cmp"
	"context"
	"slices"

	"github.com/latchkey-db/latchkey/shard"
)

// Retaining returns the highest revision at which a compaction keeps the last n revisions
// that changed something, as far as this node has applied them; 0 where there are not more.
// In the one shard that counts by itself each revision is such a one. Several share an order
// in which many are not: they changed nothing, or nobody used them.
func (r *Router) Retaining(ctx context.Context, n int64) (int64, error) {
	if d, err := r.whole(); err == nil && !d.Shape().Ordered {
		return max(d.Store().Rev()-n, 0), nil
	}
	// One more than is kept: that is where to compact.
	newest := make([]int64, 0, 64)
	for _, d := range r.shards {
		var err error
		if newest, err = newestChanges(ctx, d, newest, int(n)+1); err != nil {
			return 0, err
		}
	}
	if int64(len(newest)) <= n {
		return 0, nil
	}
	return newest[n], nil
}

// newestChanges adds the revisions that changed something in d to those of other shards,
// which fall, and returns the newest of all, n at the most.
func newestChanges(ctx context.Context, d *shard.Data, newest []int64, n int) ([]int64, error) {
	lowest := int64(0)
	if len(newest) == n {
		lowest = newest[n-1]
	}
	v := d.Store().View()
	defer v.Close()
	added := 0
	err := v.ChangesBack(ctx, func(rev int64) bool {
		if added == n || rev <= lowest {
			return false
		}
		newest = append(newest, rev)
		added++
		return true
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(newest, func(a, b int64) int { return cmp.Compare(b, a) })
	newest = slices.Compact(newest)
	return newest[:min(len(newest), n)], nil
}
