package cases

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// lockRPC takes a lock by the Lock service and returns its key and token.
func (s *served) lockRPC(ctx context.Context, name string, lease int64) (key string, token int64, err error) {
	s.T.Helper()
	var header metadata.MD
	resp, err := v3lockpb.NewLockClient(s.Conn).Lock(ctx,
		&v3lockpb.LockRequest{Name: []byte(name), Lease: lease}, grpc.Header(&header))
	if err != nil {
		return "", 0, err
	}
	values := header.Get("latchkey-fencing-token")
	if len(values) != 1 {
		s.T.Errorf("lock %s: tokens %q", name, values)
		return string(resp.GetKey()), 0, nil
	}
	token, err = strconv.ParseInt(values[0], 10, 64)
	return string(resp.GetKey()), token, err
}

// lockingRPC calls Lock in the background and returns when its key is in the queue.
func (s *served) lockingRPC(ctx context.Context, name string, lease int64) <-chan error {
	s.T.Helper()
	done := make(chan error, 1)
	go func() {
		_, _, err := s.lockRPC(ctx, name, lease)
		done <- err
	}()
	for s.Count(fmt.Sprintf("%s/%x", name, lease)) == 0 {
		if s.T.Context().Err() != nil {
			s.T.Fatal("the waiter does not come")
		}
	}
	return done
}

// A waiter whose own session dies hears it at once, and the one behind it goes on
// waiting for the holder (19597, 12547; 6408, 16221).
func TestWaiterHearsOfItsLostSession(t *testing.T) {
	s := serve(t)
	a, b, c := s.Grant(0, 60), s.Grant(0, 60), s.Grant(0, 60)
	ctx := s.Bound()
	key, token, err := s.lockRPC(ctx, "l", a)
	if err != nil {
		t.Fatal(err)
	}
	second, third := s.lockingRPC(ctx, "l", b), s.lockingRPC(ctx, "l", c)
	s.Revoke(b)
	err = harness.Within(t, "the waiter without a session", harness.Promptly, second)
	if st := status.Convert(err); st.Code() != codes.Unknown || st.Message() != "mutex: session is expired" {
		t.Errorf("the waiter without a session: %v", err)
	}
	harness.Still(t, "the last waiter", third)
	if _, err := v3lockpb.NewLockClient(s.Conn).Unlock(ctx, &v3lockpb.UnlockRequest{Key: []byte(key)}); err != nil {
		t.Fatal(err)
	}
	if err := harness.Within(t, "the last waiter", harness.Promptly, third); err != nil {
		t.Fatal(err)
	}
	if _, next, err := s.lockRPC(ctx, "l", c); err != nil || next <= token {
		t.Errorf("token %d after %d, %v", next, token, err)
	}

	election := v3electionpb.NewElectionClient(s.Conn)
	if _, err := election.Campaign(ctx, &v3electionpb.CampaignRequest{Name: []byte("e"), Lease: a}); err != nil {
		t.Fatal(err)
	}
	d := s.Grant(0, 60)
	campaign := make(chan error, 1)
	go func() {
		_, err := election.Campaign(ctx, &v3electionpb.CampaignRequest{Name: []byte("e"), Lease: d})
		campaign <- err
	}()
	for s.Count("e/") < 2 {
		if ctx.Err() != nil {
			t.Fatal("the candidate does not come")
		}
	}
	s.Revoke(d)
	err = harness.Within(t, "the candidate without a session", harness.Promptly, campaign)
	if st := status.Convert(err); st.Code() != codes.Unknown || st.Message() != "election: session is expired" {
		t.Errorf("the candidate without a session: %v", err)
	}
}

// Users of etcd's recipe and of its Lock call stand in one line: they get the lock in the
// order of asking, and never two at a time.
func TestRecipeAndCallStandInOneLine(t *testing.T) {
	s := serve(t)
	held := concurrency.NewMutex(s.session(s.C), "l")
	s.lock(held)
	var order []int
	var all sync.WaitGroup
	const lockers = 12
	for i := range lockers {
		m := concurrency.NewMutex(s.session(s.C), "l")
		lease, bound := s.Grant(0, 60), s.Bound()
		all.Go(func() {
			var err error
			var key string
			if i%2 == 0 {
				err = m.Lock(bound)
				key = m.Key()
			} else {
				key, _, err = s.lockRPC(bound, "l", lease)
			}
			if err != nil {
				t.Errorf("locker %d: %v", i, err)
				return
			}
			order = append(order, i) // the lock itself guards it
			s.Delete(key)
		})
		s.await("l/", int64(i)+2)
	}
	s.unlock(held)
	all.Wait()
	if len(order) != lockers || !slices.IsSorted(order) {
		t.Errorf("the lock went to %v", order)
	}
}

// The same session has a lock twice by the same key and token (11364, 7444), and
// the lock lives on when the call that took it has ended (vitessio/vitess 11794).
func TestLockCallIsNotTheLock(t *testing.T) {
	s := serve(t)
	lease := s.Grant(0, 60)
	ctx, cancel := context.WithCancel(s.Bound())
	key, token, err := s.lockRPC(ctx, "l", lease)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	again, same, err := s.lockRPC(s.Bound(), "l", lease)
	if err != nil || again != key || same != token {
		t.Errorf("locked again: %q %d %v, want %q %d", again, same, err, key, token)
	}
	if rev := s.Read(harness.UnderPrefix("l/", &pb.RangeRequest{})).GetKvs()[0].GetCreateRevision(); rev != token {
		t.Errorf("token %d, but the key is of %d", token, rev)
	}
	s.Restart()
	harness.Still(t, "another waiter", s.lockingRPC(s.Bound(), "l", s.Grant(0, 60)))
}
