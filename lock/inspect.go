package lock

import (
	"cmp"
	"context"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/lock/queue"
)

// Queue is who has a lock and who waits for it, at one revision.
type Queue struct {
	Name     string
	Revision int64
	// Places are in order: the holders, then the others.
	Places []Standing
	// Delayed is the guard of a holder that was lost, while it keeps the others waiting; nil
	// else. Its lease tells for how long.
	Delayed *Place
}

// Standing is a place and how it stands.
type Standing struct {
	Place
	Entry

	// Holds says that the place has the lock, and Position how many are before it in the
	// queue.
	Holds    bool
	Position int
}

// Holders returns those who have the lock.
func (q *Queue) Holders() []Standing {
	n := 0
	for n < len(q.Places) && q.Places[n].Holds {
		n++
	}
	return q.Places[:n]
}

// Waiters returns those who wait, in order.
func (q *Queue) Waiters() []Standing { return q.Places[len(q.Holders()):] }

// Get returns who has a lock and who waits for it.
func (s *Service) Get(ctx context.Context, name string) (*Queue, error) {
	if err := checkNames(name, ""); err != nil {
		return nil, err
	}
	return s.read(ctx, name, 0)
}

// Validate reports whether a token is that of a holder, and who the holders are.
func (s *Service) Validate(ctx context.Context, name string, token int64) (valid bool, holders []Standing, err error) {
	if err := checkToken(name, "", token); err != nil {
		return false, nil, err
	}
	q, err := s.read(ctx, name, 0)
	if err != nil {
		return false, nil, err
	}
	holders = q.Holders()
	for i := range holders {
		valid = valid || holders[i].Token == token
	}
	return valid, holders, nil
}

// Remaining returns what the lease of a place has left, 0 if it is over.
func (s *Service) Remaining(ctx context.Context, p Place) (time.Duration, error) {
	left, _, err := s.remaining(ctx, p)
	return left, err
}

// remaining is Remaining that tells whether the lease is there, be it in its last second.
func (s *Service) remaining(ctx context.Context, p Place) (left time.Duration, there bool, err error) {
	resp, err := s.store.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: p.Lease})
	if err != nil {
		return 0, false, err
	}
	return time.Duration(max(resp.TTL, 0)) * time.Second, resp.TTL >= 0, nil
}

// read reads a queue, up to the place of a token, or all of it where that is 0.
func (s *Service) read(ctx context.Context, name string, token int64) (*Queue, error) {
	prefix := []byte(prefixOf([]byte(name)))
	resp, err := s.store.Range(ctx, &pb.RangeRequest{
		Key: prefix, RangeEnd: keys.PrefixEnd(prefix), MaxCreateRevision: token,
		SortTarget: pb.RangeRequest_CREATE, SortOrder: pb.RangeRequest_ASCEND,
	})
	if err != nil {
		return nil, err
	}
	q := standings(resp.Kvs)
	q.Name, q.Revision = name, resp.Header.Revision
	return q, nil
}

// standings returns how the places of a queue stand, in order.
func standings(kvs []*mvccpb.KeyValue) *Queue {
	queued := queue.New(slices.SortedStableFunc(slices.Values(kvs), func(a, b *mvccpb.KeyValue) int {
		return cmp.Compare(a.CreateRevision, b.CreateRevision)
	}))
	queued.Advance(func(*queue.Key) {})
	found := make(map[string]*mvccpb.KeyValue, len(kvs))
	for _, kv := range kvs {
		found[string(kv.Key)] = kv
	}
	q := &Queue{Places: make([]Standing, 0, len(kvs))}
	for e := queued.First(); e != nil; e = e.Next() {
		kv := found[e.Name]
		if isGuard(kv) {
			if p := placeOf(kv); e == queued.First() {
				q.Delayed = &p
			}
			continue
		}
		q.Places = append(q.Places, Standing{
			Place: placeOf(kv), Entry: queue.EntryOf(kv), Holds: e.Holds, Position: len(q.Places),
		})
	}
	return q
}

// placeOf returns the place that a key is.
func placeOf(kv *mvccpb.KeyValue) Place {
	return Place{Key: string(kv.Key), Lease: kv.Lease, Token: kv.CreateRevision}
}
