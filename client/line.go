package client

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/lock/queue"
)

// line stands in the queue by way of keys alone, as etcd's recipes do, and counts holders as
// the lock service does.
func (s *Session) line(ctx context.Context, name string, wait bool, o *options) (place, error) {
	e := queue.Entry{Client: o.client, Mode: queue.Exclusive, Permits: o.permits, Of: o.of, Metadata: o.metadata, Asked: queue.Epoch(time.Now().UnixMilli())}
	switch {
	case o.shared:
		e.Mode = queue.Shared
	case o.of > 0:
		e.Mode = ""
	}
	return s.lineAs(ctx, name, wait, string(e.Value()))
}

// lineAs is line with a value for the key.
func (s *Session) lineAs(ctx context.Context, name string, wait bool, value string) (place, error) {
	key := s.key(name)
	made, err := s.c.etcd.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, value, clientv3.WithLease(s.id))).
		Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return place{}, err
	}
	token := made.Header.Revision
	if !made.Succeeded { // by an attempt whose answer was lost
		token = made.Responses[0].GetResponseRange().Kvs[0].CreateRevision
	}
	for {
		ahead, err := s.c.etcd.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithMaxCreateRev(token),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
		if err != nil {
			return place{}, err
		}
		standing, before := lookUp(ahead.Kvs, key, token)
		switch {
		case standing == gone:
			return place{}, ErrTaken
		case standing == holds:
			return place{token, ahead.Header.Revision}, nil
		case !wait:
			return place{}, ErrNotAcquired
		}
		if err := s.awaitDelete(ctx, name, before, key, ahead.Header.Revision); err != nil {
			return place{}, err
		}
	}
}

// How a place stands.
const (
	waits = iota
	holds
	gone
)

// lookUp tells how a place stands among the keys of a queue, in order and up to it. Where it waits,
// before is a key that must go first; none if that may be any.
func lookUp(kvs []*mvccpb.KeyValue, key string, token int64) (standing int, before string) {
	if n := len(kvs); n == 0 || string(kvs[n-1].Key) != key || kvs[n-1].CreateRevision != token {
		return gone, ""
	}
	q := queue.New(kvs)
	q.Advance(func(*queue.Key) {})
	if q.Get(key).Holds {
		return holds, ""
	}
	for i := len(kvs) - 2; i >= 0; i-- {
		if !queue.Together(kvs[i], kvs[len(kvs)-1]) {
			return waits, string(kvs[i].Key)
		}
	}
	return waits, ""
}

// awaitDelete waits until a key is deleted behind a revision, or any of the queue where key is
// empty, or the own one.
func (s *Session) awaitDelete(ctx context.Context, name, key, own string, rev int64) error {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	opts := []clientv3.OpOption{clientv3.WithRev(rev + 1), clientv3.WithFilterPut()}
	if key == "" {
		key, opts = name+"/", append(opts, clientv3.WithPrefix())
	}
	theirs := s.c.etcd.Watch(watching, key, opts...)
	mine := s.c.etcd.Watch(watching, own, clientv3.WithRev(rev+1), clientv3.WithFilterPut())
	var c clientv3.WatchResponse
	select {
	case c = <-theirs:
	case c = <-mine:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if len(c.Events) > 0 {
		return nil
	}
	// A watch that ended, as by a compaction, has the queue be looked at anew.
	return pause(ctx)
}
