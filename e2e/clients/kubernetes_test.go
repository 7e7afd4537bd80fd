package clients

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// podPrefix is where the objects of these tests are.
const podPrefix = "/registry/pods/"

// apiServer does with its store what Kubernetes' API server does: it keeps a cache
// by a list in pages and a watch, writes by compare and swap from what its cache
// says, and compacts the history together with its like.
type apiServer struct {
	client *kubernetes.Client

	mu      sync.Mutex
	objects map[string]*mvccpb.KeyValue
	// rev is up to where the cache is complete.
	rev int64
	// advanced is closed and replaced when rev grows.
	advanced chan struct{}
	// seen has the events by their revisions, as podWrite tells them.
	seen map[int64]string
	// gaps are the ranges of revisions, (from, to], that a new list jumped over.
	gaps [][2]int64
	// wrote has the acknowledged writes like seen.
	wrote map[int64]string
	// won are the versions of the compaction's key that this server overwrote.
	won []int64
}

func newAPIServer(t *testing.T, addr string) *apiServer {
	t.Helper()
	client, err := kubernetes.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return &apiServer{
		client: client, advanced: make(chan struct{}), seen: make(map[int64]string), wrote: make(map[int64]string),
	}
}

// podWrite tells a write of an object, without a value a deletion.
func podWrite(key string, value []byte) string {
	if value == nil {
		return "delete " + key
	}
	return "put " + key + " " + string(value)
}

// advance moves the cache to a revision; its caller holds the mutex.
func (a *apiServer) advance(rev int64) {
	if rev > a.rev {
		a.rev = rev
		close(a.advanced)
		a.advanced = make(chan struct{})
	}
}

// pages lists all objects at one revision, in pages.
func (a *apiServer) pages(ctx context.Context, limit int64) (objects map[string]*mvccpb.KeyValue, rev int64, err error) {
	objects = make(map[string]*mvccpb.KeyValue)
	opts := kubernetes.ListOptions{Limit: limit}
	for {
		page, err := a.client.Kubernetes.List(ctx, podPrefix, opts)
		if err != nil {
			return nil, 0, fmt.Errorf("list: %w", err)
		}
		if opts.Revision == 0 {
			opts.Revision = page.Revision
		}
		for _, kv := range page.Kvs {
			objects[string(kv.Key)] = kv
		}
		if int64(len(page.Kvs)) >= page.Count {
			return objects, opts.Revision, nil
		}
		opts.Continue = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// list fills the cache.
func (a *apiServer) list(ctx context.Context) error {
	objects, rev, err := a.pages(ctx, 7)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gaps = append(a.gaps, [2]int64{a.rev, rev})
	a.objects = objects
	a.advance(rev)
	return nil
}

// run keeps the cache until the context is done. A list or a watch that the history
// no longer reaches begins anew.
func (a *apiServer) run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := a.list(ctx)
		if err == nil {
			err = a.follow(clientv3.WithRequireLeader(ctx))
		}
		if err != nil && !errors.Is(err, rpctypes.ErrCompacted) && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (a *apiServer) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := a.client.Watch(ctx, podPrefix, clientv3.WithPrefix(), clientv3.WithPrevKV(),
		clientv3.WithRev(a.rev+1), clientv3.WithProgressNotify())
	for resp := range watch {
		if err := resp.Err(); err != nil {
			return err
		}
		if err := a.take(&resp); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (a *apiServer) take(resp *clientv3.WatchResponse) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if resp.IsProgressNotify() {
		a.advance(resp.Header.Revision)
		return nil
	}
	for _, e := range resp.Events {
		if err := a.apply(e); err != nil {
			return fmt.Errorf("%v %q of revision %d: %w", e.Type, e.Kv.Key, e.Kv.ModRevision, err)
		}
		a.advance(e.Kv.ModRevision)
	}
	return nil
}

// apply changes the cache by an event, which fits to it: nothing before it is
// missing.
func (a *apiServer) apply(e *clientv3.Event) error {
	key, before := string(e.Kv.Key), a.objects[string(e.Kv.Key)]
	switch {
	case e.Kv.ModRevision <= a.rev:
		return fmt.Errorf("the cache is at %d", a.rev)
	case e.IsCreate() && (before != nil || e.PrevKv != nil):
		return fmt.Errorf("created over %v and %v", before, e.PrevKv)
	case !e.IsCreate() && (before == nil || e.PrevKv.GetModRevision() != before.ModRevision):
		return fmt.Errorf("over %v in the cache, %v by the event", before, e.PrevKv)
	case e.Type == mvccpb.Event_DELETE:
		a.seen[e.Kv.ModRevision] = podWrite(key, nil)
		delete(a.objects, key)
	default:
		a.seen[e.Kv.ModRevision] = podWrite(key, e.Kv.Value)
		a.objects[key] = e.Kv
	}
	return nil
}

// reach waits for the cache to be complete up to a revision, and calls ask now and
// then.
func (a *apiServer) reach(ctx context.Context, rev int64, ask func() error) error {
	for {
		a.mu.Lock()
		now, advanced := a.rev, a.advanced
		a.mu.Unlock()
		if now >= rev {
			return nil
		}
		if err := ask(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the cache is at %d, not at %d: %w", now, rev, ctx.Err())
		case <-advanced:
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// fresh makes the cache ready for a consistent read: it asks the store for its revision and
// the watch for its progress until the cache has come that far.
func (a *apiServer) fresh(ctx context.Context) error {
	head, err := a.client.Kubernetes.List(ctx, podPrefix, kubernetes.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	return a.reach(ctx, head.Revision, func() error { return a.client.RequestProgress(clientv3.WithRequireLeader(ctx)) })
}

// update changes an object by compare and swap, first from the cache's state, which
// may be old, then from what the store answers. It creates what does not exist, and
// with remove deletes what does.
func (a *apiServer) update(ctx context.Context, key string, value []byte, remove bool) error {
	a.mu.Lock()
	current := a.objects[key]
	a.mu.Unlock()
	for {
		to := value
		if remove && current != nil {
			to = nil
		}
		done, err := a.swap(ctx, key, current.GetModRevision(), to)
		if err != nil {
			return err
		}
		if done.Succeeded {
			return a.acknowledged(done.Revision, podWrite(key, to))
		}
		if done.KV.GetModRevision() == current.GetModRevision() {
			return fmt.Errorf("%s: the compare failed at its own revision %d", key, current.GetModRevision())
		}
		current = done.KV
	}
}

// swap writes a value, or deletes without one, if the object is of a revision, 0
// for none.
func (a *apiServer) swap(ctx context.Context, key string, mod int64, value []byte) (kubernetes.PutResponse, error) {
	if value != nil {
		return a.client.Kubernetes.OptimisticPut(ctx, key, value, mod, kubernetes.PutOptions{GetOnFailure: true})
	}
	r, err := a.client.Kubernetes.OptimisticDelete(ctx, key, mod, kubernetes.DeleteOptions{GetOnFailure: true})
	return kubernetes.PutResponse(r), err
}

func (a *apiServer) acknowledged(rev int64, told string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if other, ok := a.wrote[rev]; ok {
		return fmt.Errorf("%q and %q at revision %d", other, told, rev)
	}
	a.wrote[rev] = told
	return nil
}

// compactionKey is what API servers agree by on who compacts: who writes its next
// version does, up to the revision of the last.
const compactionKey = "compact_rev_key"

func (a *apiServer) compactor(ctx context.Context, pause time.Duration) error {
	var version, rev int64
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		var err error
		if version, rev, err = a.compactOnce(ctx, version, rev); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// compactOnce compacts up to a revision if the compaction's key is of a version. It
// returns the key's version and the store's revision now.
func (a *apiServer) compactOnce(ctx context.Context, version, rev int64) (nextVersion, nextRev int64, err error) {
	r, err := a.client.KV.Txn(ctx).
		If(clientv3.Compare(clientv3.Version(compactionKey), "=", version)).
		Then(clientv3.OpPut(compactionKey, strconv.FormatInt(rev, 10))).
		Else(clientv3.OpGet(compactionKey)).Commit()
	if err != nil {
		return 0, 0, err
	}
	if !r.Succeeded {
		return r.Responses[0].GetResponseRange().Kvs[0].Version, r.Header.Revision, nil
	}
	a.won = append(a.won, version)
	if rev == 0 {
		return version + 1, r.Header.Revision, nil
	}
	if _, err := a.client.Compact(ctx, rev); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return 0, 0, err
	}
	return version + 1, r.Header.Revision, nil
}

// saw reports whether the cache saw a write, or jumped over it.
func (a *apiServer) saw(rev int64, told string) bool {
	return a.seen[rev] == told ||
		slices.ContainsFunc(a.gaps, func(gap [2]int64) bool { return gap[0] < rev && rev <= gap[1] })
}

// missed returns the acknowledged writes that the cache did not see as they were,
// and the events that nobody wrote.
func (a *apiServer) missed(wrote map[int64]string) (faults []string) {
	for rev, told := range wrote {
		if !a.saw(rev, told) {
			faults = append(faults, fmt.Sprintf("%q at revision %d was seen as %q", told, rev, a.seen[rev]))
		}
	}
	for rev, saw := range a.seen {
		if _, ok := wrote[rev]; !ok {
			faults = append(faults, fmt.Sprintf("%q at revision %d was written by nobody", saw, rev))
		}
	}
	return faults
}

// Three API servers share a store. Their caches see every write once and in order,
// are as fresh as they say, and follow while the history behind them is compacted by
// one of them at a time; a list that is too old to be continued says so.
func TestKubernetes(t *testing.T) {
	seed := harness.Seed(t, "./e2e/clients", 0)
	p := harness.NewProcess(t, "--watch-progress-notify-interval=200ms")
	ctx, cancel := context.WithTimeout(t.Context(), harness.LongWait)
	defer cancel()
	var servers []*apiServer
	var running sync.WaitGroup
	defer running.Wait()
	caching, stop := context.WithCancel(ctx)
	defer stop()
	inBackground := func(what string, fn func() error) {
		running.Go(func() {
			if err := fn(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	for range 3 {
		a := newAPIServer(t, p.Addr)
		servers = append(servers, a)
		inBackground("cache", func() error { return a.run(caching) })
		if err := a.reach(ctx, 1, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		inBackground("compactor", func() error { return a.compactor(caching, 20*time.Millisecond) })
	}
	writePods(ctx, t, servers, seed)
	tooOldToContinue(ctx, t, servers[0], servers[1])

	// Without a write to them, caches hear how far the store is.
	other, err := servers[0].client.Put(ctx, "/registry/nodes/a", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range servers {
		if err := a.reach(ctx, other.Header.Revision, func() error { return nil }); err != nil {
			t.Error(err)
		}
	}
	stop()
	running.Wait()
	checkPods(ctx, t, servers)
}

// writePods has every server write the same objects, and read them in between.
func writePods(ctx context.Context, t *testing.T, servers []*apiServer, seed uint64) {
	t.Helper()
	const writes, pods = 300, 30
	var writing sync.WaitGroup
	for i, a := range servers {
		writing.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			for n := range writes {
				key := fmt.Sprintf("%s%02d", podPrefix, rnd.IntN(pods))
				value := fmt.Sprintf("%d by %d", n, i)
				if err := a.update(ctx, key, []byte(value), rnd.IntN(5) == 0); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				if n%30 != 0 {
					continue
				}
				if err := a.fresh(ctx); err != nil {
					t.Errorf("fresh read: %v", err)
					return
				}
				a.mu.Lock()
				last := slices.Max(slices.Collect(maps.Keys(a.wrote)))
				if !a.saw(last, a.wrote[last]) {
					t.Errorf("a fresh read does not know the write before it, %q of revision %d", a.wrote[last], last)
				}
				a.mu.Unlock()
			}
		})
	}
	writing.Wait()
}

// tooOldToContinue reads the second page of a list again and again: it stays the
// same until the revision is compacted, which the answer says. So does a watch from
// there.
func tooOldToContinue(ctx context.Context, t *testing.T, a, writer *apiServer) {
	t.Helper()
	for i := range 20 {
		if err := writer.update(ctx, fmt.Sprintf("%smore%02d", podPrefix, i), []byte("more"), false); err != nil {
			t.Fatal(err)
		}
	}
	first, err := a.client.Kubernetes.List(ctx, podPrefix, kubernetes.ListOptions{Limit: 5})
	if err != nil {
		t.Fatal(err)
	}
	next := kubernetes.ListOptions{
		Limit: 5, Revision: first.Revision, Continue: string(first.Kvs[len(first.Kvs)-1].Key) + "\x00",
	}
	want := ""
	for i := 0; ; i++ {
		if err := writer.update(ctx, podPrefix+"more07", strconv.AppendInt(nil, int64(i), 10), i%3 == 0); err != nil {
			t.Fatal(err)
		}
		page, err := a.client.Kubernetes.List(ctx, podPrefix, next)
		if errors.Is(err, rpctypes.ErrCompacted) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(page.Count, page.Kvs)
		if want == "" {
			want = got
		}
		if got != want || page.Count != first.Count-5 {
			t.Fatalf("page of revision %d: %s, was %s", first.Revision, got, want)
		}
	}
	resp := <-a.client.Watch(ctx, podPrefix, clientv3.WithPrefix(), clientv3.WithRev(first.Revision))
	if !errors.Is(resp.Err(), rpctypes.ErrCompacted) || resp.CompactRevision <= first.Revision {
		t.Errorf("watch from a compacted revision %d: %v, compacted at %d", first.Revision, resp.Err(), resp.CompactRevision)
	}
}

// checkPods compares what the caches saw with what was written and what is there.
func checkPods(ctx context.Context, t *testing.T, servers []*apiServer) {
	t.Helper()
	wrote := make(map[int64]string)
	won := make(map[int64]bool)
	for _, a := range servers {
		for rev, told := range a.wrote {
			if other, ok := wrote[rev]; ok {
				t.Errorf("%q and %q at revision %d", other, told, rev)
			}
			wrote[rev] = told
		}
		for _, version := range a.won {
			if won[version] {
				t.Errorf("two servers overwrote version %d of the compaction's key", version)
			}
			won[version] = true
		}
	}
	there, _, err := servers[0].pages(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	count, err := servers[0].client.Kubernetes.Count(ctx, podPrefix, kubernetes.CountOptions{})
	if err != nil || count != int64(len(there)) {
		t.Errorf("count %d, %v, there are %d", count, err, len(there))
	}
	for i, a := range servers {
		for _, fault := range a.missed(wrote) {
			t.Errorf("cache %d: %s", i, fault)
		}
		if diff := cmp.Diff(there, a.objects, protocmp.Transform()); diff != "" {
			t.Errorf("cache %d is not what is there (+):\n%s", i, diff)
		}
		t.Logf("cache %d: %d events, %d lists, %d compactions", i, len(a.seen), len(a.gaps), len(a.won))
	}
}
