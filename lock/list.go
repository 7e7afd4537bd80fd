package lock

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/lock/queue"
)

// Bounds of lists.
const (
	// MaxListed is the most locks that one call lists.
	MaxListed = 1000
	// listChunk is how many keys are read at a time.
	listChunk = 5000
)

// ListRequest asks for locks.
type ListRequest struct {
	// Prefix is what their names begin with.
	Prefix string
	// Limit is how many are listed at the most, MaxListed if 0.
	Limit int
	// Cursor is where the list goes on: that of the page before.
	Cursor string
	// ByWaiters lists those first for which most wait, else the order is that of names.
	ByWaiters bool
}

// Listed is a lock in a list.
type Listed struct {
	Name    string
	Holders []Standing
	Waiters int
}

// Page is a part of a list.
type Page struct {
	Locks []Listed
	// Cursor is where the next page begins, empty where this is the last.
	Cursor   string
	Revision int64
}

// List lists locks that somebody has. A lock is known by its keys: those of this package, and
// those that are named by the lease which they hang on. Each page is of one revision, which
// the next may be beyond.
func (s *Service) List(ctx context.Context, r *ListRequest) (*Page, error) {
	after := 0
	switch limit, err := strconv.Atoi(r.Cursor); {
	case r.Limit < 0 || r.Limit > MaxListed:
		return nil, &FieldError{"limit", "is negative or too large"}
	case len(r.Prefix) > MaxName:
		return nil, &FieldError{"prefix", "is too long"}
	case r.ByWaiters && r.Cursor != "" && (err != nil || limit < 0):
		return nil, &FieldError{"cursor", "is none of a page"}
	case r.ByWaiters:
		after = limit
	}
	kvs, rev, err := s.places(ctx, r.Prefix)
	if err != nil {
		return nil, err
	}
	locks := queues(kvs)
	if r.ByWaiters {
		byWaiters(locks)
	} else {
		after, _ = slices.BinarySearchFunc(locks, r.Cursor, func(l queued, name string) int { return strings.Compare(l.name, name) })
	}
	locks = locks[min(after, len(locks)):]
	page := &Page{Revision: rev}
	limit := cmp.Or(r.Limit, MaxListed)
	if len(locks) > limit {
		page.Cursor = locks[limit].name
		if r.ByWaiters {
			page.Cursor = strconv.Itoa(after + limit)
		}
		locks = locks[:limit]
	}
	for _, l := range locks {
		page.Locks = append(page.Locks, l.listed())
	}
	return page, nil
}

// places reads all keys below a prefix that are places, at one revision.
func (s *Service) places(ctx context.Context, prefix string) (found []*mvccpb.KeyValue, rev int64, err error) {
	r := &pb.RangeRequest{Key: []byte(prefix), RangeEnd: keys.PrefixEnd([]byte(prefix)), Limit: listChunk}
	if prefix == "" {
		r.Key = []byte{0}
	}
	if len(r.RangeEnd) == 0 {
		r.RangeEnd = []byte{0}
	}
	for {
		resp, err := s.store.Range(ctx, r)
		if err != nil {
			return nil, 0, err
		}
		if rev == 0 {
			rev = resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			if isPlace(kv) {
				found = append(found, kv)
			}
		}
		if !resp.More || len(resp.Kvs) == 0 {
			return found, rev, nil
		}
		r.Key, r.Revision = keys.Next(resp.Kvs[len(resp.Kvs)-1].Key), rev
	}
}

// isPlace reports whether a key is a place in a queue.
func isPlace(kv *mvccpb.KeyValue) bool {
	dir := keys.Directory(kv.Key)
	if len(dir) < 2 || kv.Lease == 0 {
		return false
	}
	if string(kv.Key[len(dir):]) == strconv.FormatInt(kv.Lease, 16) {
		return true
	}
	says := queue.EntryOf(kv)
	return len(says.Calls) > 0 || says.Guards
}

// queued is a lock with the keys of its queue.
type queued struct {
	name string
	kvs  []*mvccpb.KeyValue
}

// queues returns the locks that places are of, in the order of names. What is in the queue of
// a name below stands in that of the name, too.
func queues(kvs []*mvccpb.KeyValue) []queued {
	names := make(map[string]bool)
	for _, kv := range kvs {
		names[string(keys.Directory(kv.Key))] = true
	}
	locks := make([]queued, 0, len(names))
	for dir := range names {
		from, _ := slices.BinarySearchFunc(kvs, []byte(dir), func(kv *mvccpb.KeyValue, at []byte) int { return bytes.Compare(kv.Key, at) })
		to := from
		for to < len(kvs) && bytes.HasPrefix(kvs[to].Key, []byte(dir)) {
			to++
		}
		locks = append(locks, queued{strings.TrimSuffix(dir, "/"), kvs[from:to]})
	}
	slices.SortFunc(locks, func(a, b queued) int { return strings.Compare(a.name, b.name) })
	return locks
}

// listed reads what the keys say, which for all locks would take long.
func (l queued) listed() Listed {
	q := standings(l.kvs)
	holders := slices.Clip(q.Holders())
	return Listed{Name: l.name, Holders: holders, Waiters: len(q.Places) - len(holders)}
}

// byWaiters sorts locks by how many wait for them, most first. Where there is one key nobody waits.
func byWaiters(locks []queued) {
	waiters := make(map[string]int)
	for _, l := range locks {
		if len(l.kvs) > 1 {
			waiters[l.name] = l.listed().Waiters
		}
	}
	slices.SortStableFunc(locks, func(a, b queued) int { return cmp.Compare(waiters[b.name], waiters[a.name]) })
}
