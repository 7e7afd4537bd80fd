package api

import (
	"errors"
	"log/slog"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"

	"github.com/latchkey-db/latchkey/lease"
)

func TestCost(t *testing.T) {
	put := func(n int) *pb.RequestOp {
		return opOf(&pb.PutRequest{Key: []byte("k"), Value: make([]byte, n)})
	}
	for name, tc := range map[string]struct {
		r    *pb.TxnRequest
		want int
	}{
		"nothing":       {&pb.TxnRequest{}, 0},
		"reads":         {&pb.TxnRequest{Success: many(3), Failure: ops(opDel("a", "b"))}, 0},
		"puts":          {&pb.TxnRequest{Success: ops(put(10), opGet("a"), put(20))}, 2*257 + 30},
		"dearer else":   {&pb.TxnRequest{Success: ops(put(10)), Failure: ops(put(11))}, 257 + 11},
		"nested dearer": {&pb.TxnRequest{Success: ops(put(1), opTxn(ops(put(5)), ops(put(6), put(0))))}, 3*257 + 7},
	} {
		if got := costTxn(tc.r); got != tc.want {
			t.Errorf("%s: got %d, want %d", name, got, tc.want)
		}
	}
}

// TestReserveBoundary checks that a request fits only if something is left after
// it.
func TestReserveBoundary(t *testing.T) {
	n := newNode(t)
	a := &admission{cluster: n, size: func() int64 { return 700 }, quota: 1000, log: slog.New(slog.DiscardHandler)}
	if err := a.reserve(t.Context(), 299); err != nil {
		t.Errorf("below the quota: %v", err)
	}
	if len(n.Alarms()) != 0 {
		t.Error("an alarm was raised below the quota")
	}
	if err := a.reserve(t.Context(), 300); !errors.Is(err, errNoSpace) {
		t.Errorf("at the quota: %v", err)
	}
	diff(t, []*pb.AlarmMember{{MemberID: testMember, Alarm: pb.AlarmType_NOSPACE}}, n.Alarms())
	if err := a.reserve(t.Context(), 0); err != nil {
		t.Errorf("without cost: %v", err)
	}
	a.quota = -1
	if err := a.reserve(t.Context(), 1<<40); err != nil {
		t.Errorf("without a quota: %v", err)
	}
}

// TestQuota fills the store, and makes room again as an operator does.
func TestQuota(t *testing.T) {
	const text = "etcdserver: mvcc: database space exceeded"
	r := start(t, func(c *Config) { c.QuotaBytes = 20 << 10 })
	ctx := t.Context()
	value := make([]byte, 4<<10)
	var err error
	for range 10 {
		if _, err = r.kv.Put(ctx, &pb.PutRequest{Key: []byte("k"), Value: value}); err != nil {
			break
		}
	}
	wantStatus(t, err, codes.ResourceExhausted, text)
	if size := r.DBSize(); size >= 20<<10 {
		t.Errorf("the store grew to %d", size)
	}

	// The quota speaks first, before any other check; what costs nothing passes.
	_, err = r.kv.Put(ctx, &pb.PutRequest{Value: value})
	wantStatus(t, err, codes.ResourceExhausted, text)
	_, err = r.kv.Txn(ctx, &pb.TxnRequest{Success: ops(opPut("a"))})
	wantStatus(t, err, codes.ResourceExhausted, text)
	_, err = r.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 9})
	wantStatus(t, err, codes.ResourceExhausted, text)
	_, err = r.kv.Put(ctx, &pb.PutRequest{})
	wantStatus(t, err, codes.InvalidArgument, "etcdserver: key is not provided")

	status, err := r.maintenance.Status(ctx, &pb.StatusRequest{})
	check(t, err)
	if len(status.GetErrors()) != 1 || status.GetDbSizeQuota() != 20<<10 {
		t.Errorf("Status says errors %q and quota %d", status.GetErrors(), status.GetDbSizeQuota())
	}

	resp, err := r.kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte("k")})
	check(t, err)
	_, err = r.kv.Compact(ctx, &pb.CompactionRequest{Revision: resp.GetHeader().GetRevision()})
	check(t, err)
	_, err = r.kv.Txn(ctx, &pb.TxnRequest{Success: ops(opDel("a", "z"), opGet("k"))})
	check(t, err)

	// There is room, but the alarm stays until it is cleared.
	_, err = r.kv.Put(ctx, &pb.PutRequest{Key: []byte("a")})
	wantStatus(t, err, codes.ResourceExhausted, text)
	cleared, err := r.maintenance.Alarm(ctx, &pb.AlarmRequest{
		Action: pb.AlarmRequest_DEACTIVATE, MemberID: testMember, Alarm: pb.AlarmType_NOSPACE,
	})
	check(t, err)
	if len(cleared.GetAlarms()) != 1 {
		t.Errorf("cleared %v", cleared.GetAlarms())
	}
	r.put(t, "a", "b")
}

// Leases fill the quota too, however long they live. Their ends make room.
func TestLeasesFillTheQuota(t *testing.T) {
	const text = "etcdserver: mvcc: database space exceeded"
	r := start(t, func(c *Config) { c.QuotaBytes = 20 << 10 })
	ctx := t.Context()
	var err error
	granted := int64(0)
	for granted < 1000 {
		if _, err = r.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: granted + 1, TTL: maxLeaseTTL}); err != nil {
			break
		}
		granted++
	}
	wantStatus(t, err, codes.ResourceExhausted, text)
	if want := int64(20<<10) / lease.Bytes; granted < want-1 || granted > want {
		t.Errorf("%d leases fit, want about %d", granted, want)
	}
	_, err = r.kv.Put(ctx, &pb.PutRequest{Key: []byte("k")})
	wantStatus(t, err, codes.ResourceExhausted, text)
	status, err := r.maintenance.Status(ctx, &pb.StatusRequest{})
	check(t, err)
	if len(status.GetErrors()) != 1 || status.GetDbSize() != granted*lease.Bytes {
		t.Errorf("Status says errors %q and size %d", status.GetErrors(), status.GetDbSize())
	}
	for id := range granted {
		_, err = r.lease.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: id + 1})
		check(t, err)
	}
	_, err = r.maintenance.Alarm(ctx, &pb.AlarmRequest{
		Action: pb.AlarmRequest_DEACTIVATE, MemberID: testMember, Alarm: pb.AlarmType_NOSPACE,
	})
	check(t, err)
	r.put(t, "k", "v")
	_, err = r.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 9})
	check(t, err)
}

// TestCorruptAlarm checks which calls the alarm refuses: all that go through the
// log.
func TestCorruptAlarm(t *testing.T) {
	const text = "etcdserver: corrupt cluster"
	r := start(t, nil)
	ctx := t.Context()
	_, err := r.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: 1, TTL: 9})
	check(t, err)
	for _, kind := range []pb.AlarmType{pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT} {
		_, err = r.maintenance.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: 5, Alarm: kind})
		check(t, err)
	}
	key := []byte("k")
	for name, call := range map[string]func() error{
		"Put":         func() error { _, err := r.kv.Put(ctx, &pb.PutRequest{Key: key}); return err },
		"DeleteRange": func() error { _, err := r.kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: key}); return err },
		"Txn":         func() error { _, err := r.kv.Txn(ctx, &pb.TxnRequest{Success: ops(opDel("k", ""))}); return err },
		"Compact":     func() error { _, err := r.kv.Compact(ctx, &pb.CompactionRequest{Revision: 1}); return err },
		"Grant": func() error {
			_, err := r.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: maxLeaseTTL + 1})
			return err
		},
		"Revoke": func() error { _, err := r.lease.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: 1}); return err },
	} {
		t.Run(name, func(t *testing.T) { wantStatus(t, call(), codes.DataLoss, text) })
	}
	_, err = r.kv.Range(ctx, &pb.RangeRequest{Key: key})
	check(t, err)
	_, err = r.kv.Txn(ctx, &pb.TxnRequest{Success: ops(opGet("k"))})
	check(t, err)
	_, err = r.lease.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: 1})
	check(t, err)
}
