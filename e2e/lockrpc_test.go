package e2e

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// lockRPC takes a lock by the Lock service and returns its key and token.
func (s *served) lockRPC(ctx context.Context, name string, lease int64) (key string, token int64, err error) {
	s.t.Helper()
	var header metadata.MD
	resp, err := v3lockpb.NewLockClient(s.conn).Lock(ctx,
		&v3lockpb.LockRequest{Name: []byte(name), Lease: lease}, grpc.Header(&header))
	if err != nil {
		return "", 0, err
	}
	values := header.Get("latchkey-fencing-token")
	if len(values) != 1 {
		s.t.Errorf("lock %s: tokens %q", name, values)
		return string(resp.GetKey()), 0, nil
	}
	token, err = strconv.ParseInt(values[0], 10, 64)
	return string(resp.GetKey()), token, err
}

// lockingRPC calls Lock in the background and returns when its key is in the queue.
func (s *served) lockingRPC(ctx context.Context, name string, lease int64) <-chan error {
	s.t.Helper()
	done := make(chan error, 1)
	go func() {
		_, _, err := s.lockRPC(ctx, name, lease)
		done <- err
	}()
	for s.count(fmt.Sprintf("%s/%x", name, lease)) == 0 {
		if s.t.Context().Err() != nil {
			s.t.Fatal("the waiter does not come")
		}
	}
	return done
}

// A waiter whose own session dies hears it at once, and the one behind it goes on
// waiting for the holder (19597, 12547; 6408, 16221).
func TestWaiterHearsOfItsLostSession(t *testing.T) {
	s := serve(t)
	a, b, c := s.grant(0, 60), s.grant(0, 60), s.grant(0, 60)
	ctx := s.bound()
	key, token, err := s.lockRPC(ctx, "l", a)
	if err != nil {
		t.Fatal(err)
	}
	second, third := s.lockingRPC(ctx, "l", b), s.lockingRPC(ctx, "l", c)
	s.revoke(b)
	err = within(t, "the waiter without a session", time.Second, second)
	if st := status.Convert(err); st.Code() != codes.Unknown || st.Message() != "mutex: session is expired" {
		t.Errorf("the waiter without a session: %v", err)
	}
	still(t, "the last waiter", third)
	if _, err := v3lockpb.NewLockClient(s.conn).Unlock(ctx, &v3lockpb.UnlockRequest{Key: []byte(key)}); err != nil {
		t.Fatal(err)
	}
	if err := within(t, "the last waiter", promptly, third); err != nil {
		t.Fatal(err)
	}
	if _, next, err := s.lockRPC(ctx, "l", c); err != nil || next <= token {
		t.Errorf("token %d after %d, %v", next, token, err)
	}

	election := v3electionpb.NewElectionClient(s.conn)
	if _, err := election.Campaign(ctx, &v3electionpb.CampaignRequest{Name: []byte("e"), Lease: a}); err != nil {
		t.Fatal(err)
	}
	d := s.grant(0, 60)
	campaign := make(chan error, 1)
	go func() {
		_, err := election.Campaign(ctx, &v3electionpb.CampaignRequest{Name: []byte("e"), Lease: d})
		campaign <- err
	}()
	for s.count("e/") < 2 {
		if ctx.Err() != nil {
			t.Fatal("the candidate does not come")
		}
	}
	s.revoke(d)
	err = within(t, "the candidate without a session", time.Second, campaign)
	if st := status.Convert(err); st.Code() != codes.Unknown || st.Message() != "election: session is expired" {
		t.Errorf("the candidate without a session: %v", err)
	}
}

// The same session has a lock twice by the same key and token (11364, 7444), and
// the lock lives on when the call that took it has ended (vitessio/vitess 11794).
func TestLockCallIsNotTheLock(t *testing.T) {
	s := serve(t)
	lease := s.grant(0, 60)
	ctx, cancel := context.WithCancel(s.bound())
	key, token, err := s.lockRPC(ctx, "l", lease)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	again, same, err := s.lockRPC(s.bound(), "l", lease)
	if err != nil || again != key || same != token {
		t.Errorf("locked again: %q %d %v, want %q %d", again, same, err, key, token)
	}
	if rev := s.read(underPrefix("l/", &pb.RangeRequest{})).GetKvs()[0].GetCreateRevision(); rev != token {
		t.Errorf("token %d, but the key is of %d", token, rev)
	}
	s.restart()
	still(t, "another waiter", s.lockingRPC(s.bound(), "l", s.grant(0, 60)))
}
