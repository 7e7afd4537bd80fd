package faults

import (
	"context"
	"time"
)

// Unsettled are the metrics of what transactions over several shards have still to do on a node.
var Unsettled = []string{"latchkey_transactions_holding", "latchkey_transactions_unfinished"}

// settlePatience is how long transactions may take to settle on a whole cluster that nobody
// writes to any more.
const settlePatience = 10 * time.Second

// CheckSettled sees to it that transactions over several shards leave nothing behind on any
// shard of any node. The cluster is whole and nobody writes.
func CheckSettled(ctx context.Context, r *Report, c *Cluster) {
	deadline := time.Now().Add(settlePatience)
	for _, n := range c.Nodes {
		for _, name := range Unsettled {
			for {
				left, err := n.Metric(ctx, name)
				if err == nil && left == 0 {
					break
				}
				if time.Now().After(deadline) {
					r.Violation("%s of %s is %v after %v (%v)", name, n.Name, left, settlePatience, err)
					break
				}
				sleep(ctx, 50*time.Millisecond)
			}
		}
	}
}
