package lock

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/mvcc"
)

// Observe hands each leader of an election, and each value that it proclaims, to tell, with
// the revision at which that was seen. It returns when ctx ends, or with the error of tell
// or of a watch. Where the election can't be read it just ends, as etcd does.
func (s *Service) Observe(ctx context.Context, name []byte, tell func(leader *mvccpb.KeyValue, rev int64) error) error {
	o := observer{watchers: s.node.Watchers(), tell: tell}
	defer o.watchers.Close()
	prefix := prefixOf(name)
	for {
		resp, err := s.store.Range(ctx, oldest(prefix))
		switch {
		case err != nil:
			return ctx.Err()
		case len(resp.Kvs) > 0:
			err = o.reign(ctx, resp.Kvs[0], resp.Header.Revision)
		default:
			err = o.interregnum(ctx, prefix, resp.Header.Revision)
		}
		if err != nil {
			return err
		}
	}
}

// observer is one call of Observe.
type observer struct {
	watchers Watchers
	tell     func(leader *mvccpb.KeyValue, rev int64) error
	// idle, unless it is nil, is called when there is nothing to see, and says when to call it
	// again if there still is not.
	idle func(context.Context) (next time.Duration, again bool)
}

// reign tells of a leader that was seen at a revision, until its key is gone.
func (o *observer) reign(ctx context.Context, leader *mvccpb.KeyValue, rev int64) error {
	if err := o.tell(leader, rev); err != nil {
		return err
	}
	return o.watch(ctx, mvcc.WatchOptions{Key: leader.Key, Start: rev + 1}, func(b *mvcc.WatchBatch) (bool, error) {
		for _, ev := range b.Events {
			if ev.Type == mvccpb.Event_DELETE {
				return true, nil
			}
			if err := o.tell(ev.Kv, b.Rev); err != nil {
				return true, err
			}
		}
		return false, nil
	})
}

// interregnum waits for the first candidate after a revision without any, and tells of its
// reign.
func (o *observer) interregnum(ctx context.Context, prefix string, rev int64) error {
	var leader *mvccpb.KeyValue
	candidates := mvcc.WatchOptions{Key: []byte(prefix), End: keys.PrefixEnd([]byte(prefix)), Start: rev + 1, NoDelete: true}
	err := o.watch(ctx, candidates, func(b *mvcc.WatchBatch) (bool, error) {
		if len(b.Events) > 0 {
			leader = b.Events[0].Kv
		}
		return leader != nil, nil
	})
	if err != nil || leader == nil {
		return err
	}
	return o.reign(ctx, leader, leader.ModRevision)
}

// watch hands what a watcher sees to see, until that has seen enough, or until a compaction
// overtakes the watcher.
func (o *observer) watch(ctx context.Context, opts mvcc.WatchOptions, see func(*mvcc.WatchBatch) (enough bool, err error)) error {
	o.watchers.Add(only, opts)
	defer o.watchers.Remove(only)
	return o.follow(ctx, see)
}

// follow is watch of a watcher that is there.
func (o *observer) follow(ctx context.Context, see func(*mvcc.WatchBatch) (enough bool, err error)) error {
	for {
		b, ok, err := o.watchers.Poll()
		switch {
		case err != nil:
			return err
		case ok && b.CompactRev != 0:
			return nil
		case ok:
			if enough, err := see(&b); enough || err != nil {
				return err
			}
			continue
		}
		if err := o.await(ctx); err != nil {
			return err
		}
	}
}

// await returns when there may be something to see, or idle is to be called again.
func (o *observer) await(ctx context.Context) error {
	pause := ctx
	if o.idle != nil {
		if next, again := o.idle(ctx); again {
			var cancel context.CancelFunc
			pause, cancel = context.WithTimeout(ctx, next)
			defer cancel()
		}
	}
	select {
	case <-o.watchers.Ready():
	case <-pause.Done():
	}
	return ctx.Err()
}
