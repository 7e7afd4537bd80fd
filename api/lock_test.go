package api

import (
	"context"
	"errors"
	"io"
	"strconv"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// grant makes leases that do not end by themselves.
func (r *running) grant(tb testing.TB, ids ...int64) {
	tb.Helper()
	for _, id := range ids {
		_, err := r.lease.LeaseGrant(tb.Context(), &pb.LeaseGrantRequest{ID: id, TTL: 3600})
		check(tb, err)
	}
}

func (r *running) revoke(tb testing.TB, id int64) {
	tb.Helper()
	_, err := r.lease.LeaseRevoke(tb.Context(), &pb.LeaseRevokeRequest{ID: id})
	check(tb, err)
}

// awaitKey waits until key exists and returns its create revision.
func (r *running) awaitKey(tb testing.TB, key string) int64 {
	tb.Helper()
	for began := time.Now(); ; {
		if time.Since(began) > time.Minute {
			tb.Fatalf("%s does not come to be", key)
		}
		resp, err := r.kv.Range(tb.Context(), &pb.RangeRequest{Key: []byte(key)})
		check(tb, err)
		if len(resp.GetKvs()) == 1 {
			return resp.GetKvs()[0].GetCreateRevision()
		}
	}
}

// locked is the outcome of a Lock call.
type locked struct {
	key   string
	token int64
	err   error
}

func (r *running) takeLock(ctx context.Context, name string, lease int64) locked {
	var header metadata.MD
	resp, err := r.lock.Lock(ctx, &v3lockpb.LockRequest{Name: []byte(name), Lease: lease}, grpc.Header(&header))
	l := locked{key: string(resp.GetKey()), err: err}
	for _, token := range header.Get(FencingTokenHeader) {
		l.token, _ = strconv.ParseInt(token, 10, 64)
	}
	return l
}

// waitForLock calls Lock and returns when its key is in the queue.
func (r *running) waitForLock(ctx context.Context, tb testing.TB, name string, lease int64) <-chan locked {
	tb.Helper()
	got := make(chan locked, 1)
	go func() { got <- r.takeLock(ctx, name, lease) }()
	r.awaitKey(tb, name+"/"+strconv.FormatInt(lease, 16))
	return got
}

// soon returns what comes within the time in which it must have come.
func soon[T any](tb testing.TB, c <-chan T) T {
	tb.Helper()
	var v T
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		tb.Fatal("nothing came")
	}
	return v
}

func wantWaiting(tb testing.TB, c <-chan locked) {
	tb.Helper()
	select {
	case l := <-c:
		tb.Fatalf("did not wait: %+v", l)
	default:
	}
}

func TestLock(t *testing.T) {
	r := start(t, nil)
	r.grant(t, 0xa, 0xb, 0xc)
	first := r.takeLock(t.Context(), "l", 0xa)
	diff(t, locked{key: "l/a", token: 2}.want(), first.want())
	// The same session has it already.
	diff(t, first.want(), r.takeLock(t.Context(), "l", 0xa).want())

	second := r.waitForLock(t.Context(), t, "l", 0xb)
	third := r.waitForLock(t.Context(), t, "l", 0xc)
	// The one before the third goes without having held the lock.
	r.revoke(t, 0xb)
	lost := soon(t, second)
	wantStatus(t, lost.err, codes.Unknown, "mutex: session is expired")
	wantWaiting(t, third)
	_, err := r.lock.Unlock(t.Context(), &v3lockpb.UnlockRequest{Key: []byte(first.key)})
	check(t, err)
	diff(t, locked{key: "l/c", token: 4}.want(), soon(t, third).want())

	resp, err := r.lock.Unlock(t.Context(), &v3lockpb.UnlockRequest{Key: []byte("l/c")})
	check(t, err)
	again, err := r.lock.Unlock(t.Context(), &v3lockpb.UnlockRequest{Key: []byte("l/c")})
	check(t, err)
	diff(t, resp.GetHeader(), again.GetHeader())
}

// want is l for a comparison; a failed call is never equal to another.
func (l locked) want() map[string]any {
	return map[string]any{"key": l.key, "token": l.token, "err": l.err}
}

// TestLockWithoutLease checks that a lease is granted for a minute.
func TestLockWithoutLease(t *testing.T) {
	r := start(t, nil)
	l := r.takeLock(t.Context(), "l", 0)
	diff(t, locked{key: "l/5eed", token: 2}.want(), l.want())
	resp, err := r.lease.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: drawnLease, Keys: true})
	check(t, err)
	if resp.GetGrantedTTL() != 60 || len(resp.GetKeys()) != 1 {
		t.Errorf("the lock's lease: %v", resp)
	}
}

func TestLockErrors(t *testing.T) {
	r := start(t, nil)
	wantStatus(t, r.takeLock(t.Context(), "l", 1).err, codes.Unknown, "etcdserver: requested lease not found")
	_, err := r.lock.Unlock(t.Context(), &v3lockpb.UnlockRequest{})
	wantStatus(t, err, codes.Unknown, "etcdserver: key is not provided")
	r.set(func() { r.fail = context.DeadlineExceeded })
	_, err = r.lock.Unlock(t.Context(), &v3lockpb.UnlockRequest{Key: []byte("k")})
	wantStatus(t, err, codes.DeadlineExceeded, "context deadline exceeded")
}

// TestLockGivesUp checks that a waiter which gives up leaves the queue, and that
// the one behind it goes on waiting.
func TestLockGivesUp(t *testing.T) {
	r := start(t, nil)
	r.grant(t, 0xa, 0xb, 0xc)
	held := r.takeLock(t.Context(), "l", 0xa)
	check(t, held.err)
	ctx, cancel := context.WithCancel(t.Context())
	impatient := r.waitForLock(ctx, t, "l", 0xb)
	patient := r.waitForLock(t.Context(), t, "l", 0xc)
	cancel()
	if l := soon(t, impatient); l.err == nil {
		t.Errorf("a lock was given: %+v", l)
	}
	w := openWatch(t, r)
	w.request(&pb.WatchCreateRequest{Key: []byte("l/b"), StartRevision: 4})
	w.recv() // created, before or after the deletion
	if ev := w.recv().GetEvents(); len(ev) != 1 || ev[0].GetType().String() != "DELETE" {
		t.Errorf("the waiter's key: %v", ev)
	}
	wantWaiting(t, patient)
	r.revoke(t, 0xa)
	check(t, soon(t, patient).err)
}

// TestLockSameKeyAgain checks that a waiter whose key is deleted and made again
// by another call does not take the new one for its own, nor deletes it.
func TestLockSameKeyAgain(t *testing.T) {
	r := start(t, nil)
	r.grant(t, 0xa, 0xb)
	check(t, r.takeLock(t.Context(), "l", 0xa).err)
	old := r.waitForLock(t.Context(), t, "l", 0xb)
	_, err := r.kv.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{
		{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte("l/b")}}},
	}})
	check(t, err)
	renewed := r.put(t, "l/b", "")
	wantStatus(t, soon(t, old).err, codes.Unknown, "mutex: session is expired")
	if got := r.awaitKey(t, "l/b"); got != renewed {
		t.Errorf("the new key is of revision %d, want %d", got, renewed)
	}
}

// A call that waits goes on waiting where the history that it waits in is compacted away.
func TestWaitersOutliveCompaction(t *testing.T) {
	r := start(t, nil)
	r.grant(t, 0xa, 0xb)
	check(t, r.takeLock(t.Context(), "l", 0xa).err)
	_, err := r.election.Campaign(t.Context(), &v3electionpb.CampaignRequest{Name: []byte("e"), Lease: 0xa})
	check(t, err)
	_, err = r.kv.Compact(t.Context(), &pb.CompactionRequest{Revision: r.put(t, "other", ""), Physical: true})
	check(t, err)

	lock := r.loseHistory("l/")
	waiter := make(chan locked, 1)
	go func() { waiter <- r.takeLock(t.Context(), "l", 0xb) }()
	soon(t, lock)
	election := r.loseHistory("e/")
	campaign := make(chan error, 1)
	go func() {
		_, err := r.election.Campaign(t.Context(), &v3electionpb.CampaignRequest{Name: []byte("e"), Lease: 0xb})
		campaign <- err
	}()
	soon(t, election)
	token := r.awaitKey(t, "l/b")
	r.awaitKey(t, "e/b")
	r.revoke(t, 0xa)
	diff(t, locked{key: "l/b", token: token}.want(), soon(t, waiter).want())
	check(t, soon(t, campaign))
}

// A candidate whose call fails while it waits leaves the queue.
func TestFailedCampaignLeaves(t *testing.T) {
	r := start(t, nil)
	r.grant(t, 0xa, 0xb)
	_, err := r.election.Campaign(t.Context(), &v3electionpb.CampaignRequest{Name: []byte("e"), Lease: 0xa})
	check(t, err)
	campaign := make(chan error, 1)
	go func() {
		_, err := r.election.Campaign(t.Context(), &v3electionpb.CampaignRequest{Name: []byte("e"), Lease: 0xb})
		campaign <- err
	}()
	r.awaitKey(t, "e/b")
	r.blind.Store(true)
	r.revoke(t, 0xa)
	wantStatus(t, soon(t, campaign), codes.Unknown, "etcdserver: mvcc: required revision is a future revision")
	r.blind.Store(false)
	resp, err := r.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("e/b")})
	check(t, err)
	if len(resp.GetKvs()) > 0 {
		t.Errorf("the call has failed, and its key is there: %v", resp.GetKvs())
	}
}

// TestStopEndsWaiters checks that calls which wait end with the server, at once,
// and leave no key behind.
func TestStopEndsWaiters(t *testing.T) {
	r := start(t, nil)
	r.grant(t, 0xa, 0xb, 0xc)
	check(t, r.takeLock(t.Context(), "l", 0xa).err)
	lock := r.waitForLock(t.Context(), t, "l", 0xb)
	campaign := make(chan error, 1)
	go func() {
		_, err := r.election.Campaign(t.Context(), &v3electionpb.CampaignRequest{Name: []byte("l"), Lease: 0xc})
		campaign <- err
	}()
	r.awaitKey(t, "l/c")
	observe, err := r.election.Observe(t.Context(), &v3electionpb.LeaderRequest{Name: []byte("l")})
	check(t, err)
	_, err = observe.Recv()
	check(t, err)

	began := time.Now()
	stop(r, 2*time.Minute)
	if d := time.Since(began); d > time.Minute {
		t.Errorf("Stop took %v", d)
	}
	const stopped = "etcdserver: server stopped"
	wantStatus(t, soon(t, lock).err, codes.Unavailable, stopped)
	wantStatus(t, soon(t, campaign), codes.Unavailable, stopped)
	_, err = observe.Recv()
	wantStatus(t, err, codes.Unavailable, stopped)
	v := r.store.View()
	defer v.Close()
	resp, err := v.Range(t.Context(), &pb.RangeRequest{Key: []byte("l/"), RangeEnd: []byte("l0"), CountOnly: true})
	check(t, err)
	if resp.GetCount() != 1 {
		t.Errorf("%d keys are left, want the holder's", resp.GetCount())
	}
}

func TestElection(t *testing.T) {
	r := start(t, nil)
	r.grant(t, 0xa, 0xb, 0xc)
	ctx := t.Context()
	name := []byte("e")
	campaign := func(lease int64, value string) (*v3electionpb.LeaderKey, error) {
		resp, err := r.election.Campaign(ctx, &v3electionpb.CampaignRequest{Name: name, Lease: lease, Value: []byte(value)})
		return resp.GetLeader(), err
	}
	observe, err := r.election.Observe(ctx, &v3electionpb.LeaderRequest{Name: name})
	check(t, err)
	wantLeader := func(value string) {
		t.Helper()
		resp, err := observe.Recv()
		check(t, err)
		if got := string(resp.GetKv().GetValue()); got != value {
			t.Errorf("observed %q, want %q", got, value)
		}
	}
	_, err = r.election.Leader(ctx, &v3electionpb.LeaderRequest{Name: name})
	wantStatus(t, err, codes.Unknown, "election: no leader")
	_, err = r.election.Proclaim(ctx, &v3electionpb.ProclaimRequest{})
	wantStatus(t, err, codes.Unknown, `"leader" field must be provided`)
	_, err = r.election.Resign(ctx, &v3electionpb.ResignRequest{})
	wantStatus(t, err, codes.Unknown, `"leader" field must be provided`)

	leader, err := campaign(0xa, "one")
	check(t, err)
	diff(t, &v3electionpb.LeaderKey{Name: name, Key: []byte("e/a"), Rev: 2, Lease: 0xa}, leader)
	wantLeader("one")
	_, err = r.election.Proclaim(ctx, &v3electionpb.ProclaimRequest{Leader: leader, Value: []byte("two")})
	check(t, err)
	wantLeader("two")
	again, err := campaign(0xa, "three")
	check(t, err)
	diff(t, leader, again)
	wantLeader("three")

	lost, next := make(chan error, 1), make(chan error, 1)
	go func() { _, err := campaign(0xb, "lost"); lost <- err }()
	r.awaitKey(t, "e/b")
	go func() { _, err := campaign(0xc, "next"); next <- err }()
	r.awaitKey(t, "e/c")
	r.revoke(t, 0xb)
	wantStatus(t, soon(t, lost), codes.Unknown, "election: session is expired")
	resign := &v3electionpb.ResignRequest{Leader: leader}
	_, err = r.election.Resign(ctx, resign)
	check(t, err)
	check(t, soon(t, next))
	wantLeader("next")
	// What was led before says nothing about what leads now.
	_, err = r.election.Resign(ctx, resign)
	check(t, err)
	_, err = r.election.Proclaim(ctx, &v3electionpb.ProclaimRequest{Leader: leader})
	wantStatus(t, err, codes.Unknown, "election: not leader")
	resp, err := r.election.Leader(ctx, &v3electionpb.LeaderRequest{Name: name})
	check(t, err)
	if string(resp.GetKv().GetKey()) != "e/c" {
		t.Errorf("the leader is %v", resp.GetKv())
	}
}

// TestElectionPrefix checks that keys whose names only begin like an election's
// are no candidates.
func TestElectionPrefix(t *testing.T) {
	r := start(t, nil)
	r.put(t, "xyz", "")
	_, err := r.election.Campaign(t.Context(), &v3electionpb.CampaignRequest{Name: []byte("xy")})
	check(t, err)
}

// TestObserveEnds checks that an observer that goes ends the stream's work.
func TestObserveEnds(t *testing.T) {
	r := start(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	observe, err := r.election.Observe(ctx, &v3electionpb.LeaderRequest{Name: []byte("e")})
	check(t, err)
	cancel()
	if _, err := observe.Recv(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}
