package api

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
)

func TestStatus(t *testing.T) {
	r := start(t, nil)
	got, err := r.maintenance.Status(t.Context(), &pb.StatusRequest{})
	check(t, err)
	if got.GetDbSize() < 1 {
		t.Errorf("the size of an empty store is %d, by which etcdctl divides", got.GetDbSize())
	}
	r.put(t, "k", "v")
	got, err = r.maintenance.Status(t.Context(), &pb.StatusRequest{})
	check(t, err)
	want := &pb.StatusResponse{
		Header: header(2), Version: "3.7.3", Leader: testMember,
		RaftIndex: 12, RaftAppliedIndex: 11, RaftTerm: testTerm,
		DbSize: r.DBSize(), DbSizeInUse: r.Status().DBSizeInUse, DbSizeQuota: 2 << 30,
		StorageVersion: "3.7.0", DowngradeInfo: &pb.DowngradeInfo{},
	}
	diff(t, want, got)
	if got.GetDbSize() == 0 || got.GetDbSizeInUse() == 0 {
		t.Errorf("sizes are %d and %d", got.GetDbSize(), got.GetDbSizeInUse())
	}

	r.leader.Store(0)
	alarm := &pb.AlarmMember{MemberID: 3, Alarm: pb.AlarmType_CORRUPT}
	r.set(func() { r.alarms = []*pb.AlarmMember{alarm} })
	got, err = r.maintenance.Status(t.Context(), &pb.StatusRequest{})
	check(t, err)
	diff(t, []string{"etcdserver: no leader", alarm.String()}, got.GetErrors())
}

func TestAlarm(t *testing.T) {
	r := start(t, nil)
	space := &pb.AlarmMember{MemberID: 3, Alarm: pb.AlarmType_NOSPACE}
	corrupt := &pb.AlarmMember{MemberID: 4, Alarm: pb.AlarmType_CORRUPT}
	for _, tc := range []struct {
		action pb.AlarmRequest_AlarmAction
		member uint64
		alarm  pb.AlarmType
		want   []*pb.AlarmMember
	}{
		{pb.AlarmRequest_GET, 0, pb.AlarmType_NONE, nil},
		{pb.AlarmRequest_ACTIVATE, 3, pb.AlarmType_NONE, nil},
		{pb.AlarmRequest_ACTIVATE, 3, pb.AlarmType_NOSPACE, []*pb.AlarmMember{space}},
		{pb.AlarmRequest_ACTIVATE, 3, pb.AlarmType_NOSPACE, []*pb.AlarmMember{space}},
		{pb.AlarmRequest_ACTIVATE, 4, pb.AlarmType_CORRUPT, []*pb.AlarmMember{corrupt}},
		{pb.AlarmRequest_GET, 9, pb.AlarmType_NONE, []*pb.AlarmMember{space, corrupt}},
		{pb.AlarmRequest_GET, 0, pb.AlarmType_CORRUPT, []*pb.AlarmMember{corrupt}},
		{pb.AlarmRequest_DEACTIVATE, 4, pb.AlarmType_NOSPACE, nil},
		{pb.AlarmRequest_DEACTIVATE, 3, pb.AlarmType_NONE, nil},
		{pb.AlarmRequest_DEACTIVATE, 3, pb.AlarmType_NOSPACE, []*pb.AlarmMember{space}},
		{pb.AlarmRequest_GET, 0, pb.AlarmType_NOSPACE, nil},
	} {
		got, err := r.maintenance.Alarm(t.Context(), &pb.AlarmRequest{Action: tc.action, MemberID: tc.member, Alarm: tc.alarm})
		check(t, err)
		diff(t, &pb.AlarmResponse{Header: header(1), Alarms: tc.want}, got)
	}
	_, err := r.maintenance.Alarm(t.Context(), &pb.AlarmRequest{Action: 9})
	wantStatus(t, err, codes.Unknown, "etcdserver: unknown method")
}

func TestHashes(t *testing.T) {
	r := start(t, nil)
	r.put(t, "k", "v")
	kv, err := r.maintenance.HashKV(t.Context(), &pb.HashKVRequest{})
	check(t, err)
	diff(t, header(2), kv.GetHeader())
	if kv.GetHash() == 0 || kv.GetHashRevision() != 2 {
		t.Errorf("HashKV says %v", kv)
	}
	_, err = r.maintenance.HashKV(t.Context(), &pb.HashKVRequest{Revision: 9})
	wantStatus(t, err, codes.OutOfRange, "etcdserver: mvcc: required revision is a future revision")
	all, err := r.maintenance.Hash(t.Context(), &pb.HashRequest{})
	check(t, err)
	diff(t, header(2), all.GetHeader())
	frag, err := r.maintenance.Defragment(t.Context(), &pb.DefragmentRequest{})
	check(t, err)
	diff(t, &pb.DefragmentResponse{}, frag)
}

// TestSnapshot checks the stream of a backup as etcdctl reads it.
func TestSnapshot(t *testing.T) {
	for _, size := range []int{0, 1, 511, 512, 513, snapshotChunk, snapshotChunk + 1, 3*snapshotChunk - 7} {
		r := start(t, nil)
		r.backup = bytes.Repeat([]byte{0xab}, size)
		stream, err := r.maintenance.Snapshot(t.Context(), &pb.SnapshotRequest{})
		check(t, err)
		var all []byte
		for {
			resp, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			check(t, err)
			if resp.GetVersion() != "3.7.0" {
				t.Errorf("size %d: version %q", size, resp.GetVersion())
			}
			all = append(all, resp.GetBlob()...)
			padded := (size + 511) / 512 * 512
			if want := max(padded-len(all), 0); resp.GetRemainingBytes() != uint64(want) {
				t.Errorf("size %d: after %d bytes %d remain", size, len(all), resp.GetRemainingBytes())
			}
		}
		if len(all)%512 != sha256.Size {
			t.Fatalf("size %d: the stream has %d bytes", size, len(all))
		}
		body, sum := all[:len(all)-sha256.Size], all[len(all)-sha256.Size:]
		if got := sha256.Sum256(body); !bytes.Equal(got[:], sum) {
			t.Errorf("size %d: the checksum is wrong", size)
		}
		if !bytes.Equal(body[:size], r.backup) || len(bytes.Trim(body[size:], "\x00")) != 0 {
			t.Errorf("size %d: the body is not the padded backup", size)
		}
		left, err := os.ReadDir(r.server.config.SnapshotDir)
		check(t, err)
		if len(left) != 0 {
			t.Errorf("size %d: left behind: %v", size, left)
		}
	}
}

func TestSnapshotFails(t *testing.T) {
	r := start(t, nil)
	r.fail = errors.New("disk on fire")
	stream, err := r.maintenance.Snapshot(t.Context(), &pb.SnapshotRequest{})
	check(t, err)
	_, err = stream.Recv()
	wantStatus(t, err, codes.Unknown, "disk on fire")
}

func TestMoveLeader(t *testing.T) {
	r := start(t, nil)
	r.set(func() {
		r.members = append(r.members, &pb.Member{ID: 2, Name: "two"}, &pb.Member{ID: 3, IsLearner: true})
	})
	move := func(target uint64) error {
		resp, err := r.maintenance.MoveLeader(t.Context(), &pb.MoveLeaderRequest{TargetID: target})
		if err == nil {
			diff(t, &pb.MoveLeaderResponse{}, resp)
		}
		return err
	}
	check(t, move(testMember))
	wantStatus(t, move(9), codes.FailedPrecondition, "etcdserver: bad leader transferee")
	wantStatus(t, move(3), codes.FailedPrecondition, "etcdserver: bad leader transferee")
	r.fail = ErrNotMoved
	wantStatus(t, move(2), codes.Unknown, "etcdserver: request timed out, leader transfer took too long")
	r.fail = nil
	check(t, move(2))
	if got := r.Leader(); got != 2 {
		t.Errorf("member %d leads", got)
	}
	wantStatus(t, move(testMember), codes.FailedPrecondition, "etcdserver: not leader")
}

func TestDowngrade(t *testing.T) {
	r := start(t, nil)
	const (
		format = "etcdserver: wrong downgrade target version format"
		target = "etcdserver: invalid downgrade target version"
		none   = "latchkey: there is no older version to downgrade to"
	)
	for version, tc := range map[string]struct {
		code codes.Code
		text string
	}{
		"":            {codes.InvalidArgument, format},
		"3":           {codes.InvalidArgument, format},
		"3.x":         {codes.InvalidArgument, format},
		"3.6.1.0":     {codes.InvalidArgument, format},
		"v3.6":        {codes.InvalidArgument, format},
		"3.6-rc.0":    {codes.InvalidArgument, format},
		"3.6.1-a..b":  {codes.InvalidArgument, format},
		"3.6.1+a_b":   {codes.InvalidArgument, format},
		"3.7":         {codes.InvalidArgument, target},
		"3.5.0":       {codes.InvalidArgument, target},
		"4.6.0":       {codes.InvalidArgument, target},
		"3.6":         {codes.Unimplemented, none},
		"3.6.4-rc.0":  {codes.Unimplemented, none},
		"3.6.4+build": {codes.Unimplemented, none},
	} {
		for _, action := range []pb.DowngradeRequest_DowngradeAction{pb.DowngradeRequest_VALIDATE, pb.DowngradeRequest_ENABLE} {
			_, err := r.maintenance.Downgrade(t.Context(), &pb.DowngradeRequest{Action: action, Version: version})
			wantStatus(t, err, tc.code, tc.text)
		}
	}
	got, err := r.maintenance.Downgrade(t.Context(), &pb.DowngradeRequest{Action: pb.DowngradeRequest_CANCEL})
	check(t, err)
	diff(t, &pb.DowngradeResponse{Header: header(1), Version: "3.7"}, got)
	_, err = r.maintenance.Downgrade(t.Context(), &pb.DowngradeRequest{Action: 9})
	wantStatus(t, err, codes.Unknown, "etcdserver: unknown method")
}
