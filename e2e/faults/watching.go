package faults

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// watchRevisions watches a range from a revision until ctx ends, and hands over the events of
// each revision together. One that comes in parts, or behind a higher one, is a violation.
func watchRevisions(
	ctx context.Context, r *Report, c *clientv3.Client, key, end string, from int64, each func(rev int64, events []*clientv3.Event),
) {
	for ctx.Err() == nil {
		for resp := range c.Watch(clientv3.WithRequireLeader(ctx), key, clientv3.WithRange(end), clientv3.WithRev(from)) {
			if resp.CompactRevision != 0 {
				r.Violation("watch of %q from %d ended as compacted", key, from)
				return
			}
			for events := resp.Events; len(events) > 0; {
				rev, n := events[0].Kv.ModRevision, 1
				for n < len(events) && events[n].Kv.ModRevision == rev {
					n++
				}
				if rev < from {
					r.Violation("watch of %q: %d events of revision %d behind those up to %d", key, n, rev, from-1)
				}
				each(rev, events[:n])
				events, from = events[n:], rev+1
			}
		}
		sleep(ctx, 10*time.Millisecond)
	}
}

// history hands over the events of a key from one revision to another, at which the key has changed. It
// reports whether it saw them all.
func history(ctx context.Context, c *clientv3.Client, key string, from, to int64, each func(e *clientv3.Event)) bool {
	if to < from {
		return true
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for resp := range c.Watch(ctx, key, clientv3.WithRev(from)) {
		for _, e := range resp.Events {
			each(e)
			if e.Kv.ModRevision >= to {
				return true
			}
		}
	}
	return false
}
