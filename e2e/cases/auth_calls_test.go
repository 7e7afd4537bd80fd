package cases

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// rights is what a call answers to whom.
type rights struct {
	request proto.Message
	// nobody and user are the errors of a caller without a token and of a user who
	// has no right to any key and no role but one's own.
	nobody, user error
}

var (
	errNoUser = rpctypes.ErrGRPCUserEmpty
	errDenied = rpctypes.ErrGRPCPermissionDenied
)

// lockErr is an error as Lock and Election pass it on, without its code.
func lockErr(err error) error { return status.Error(codes.Unknown, status.Convert(err).Message()) }

// callRights has every call of every service.
var callRights = map[string]rights{
	"KV/Range":       {&pb.RangeRequest{Key: []byte("k")}, errNoUser, errDenied},
	"KV/RangeStream": {&pb.RangeRequest{Key: []byte("k")}, errNoUser, errDenied},
	"KV/Put":         {&pb.PutRequest{Key: []byte("k")}, errNoUser, errDenied},
	"KV/DeleteRange": {&pb.DeleteRangeRequest{Key: []byte("k")}, errNoUser, errDenied},
	"KV/Txn":         {&pb.TxnRequest{Success: []*pb.RequestOp{harness.OpPut("k", "v")}}, errNoUser, errDenied},
	"KV/Compact":     {&pb.CompactionRequest{Revision: 1}, errNoUser, errDenied},

	"Watch/Watch": {&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
		CreateRequest: &pb.WatchCreateRequest{Key: []byte("k")},
	}}, errNoUser, errDenied},

	"Lease/LeaseGrant":      {&pb.LeaseGrantRequest{TTL: 600}, errNoUser, nil},
	"Lease/LeaseRevoke":     {&pb.LeaseRevokeRequest{ID: 7}, errNoUser, errDenied},
	"Lease/LeaseKeepAlive":  {&pb.LeaseKeepAliveRequest{ID: 7}, errNoUser, errDenied},
	"Lease/LeaseTimeToLive": {&pb.LeaseTimeToLiveRequest{ID: 7, Keys: true}, errNoUser, errDenied},
	"Lease/LeaseLeases":     {&pb.LeaseLeasesRequest{}, errNoUser, errDenied},

	"Cluster/MemberAdd":     {&pb.MemberAddRequest{PeerURLs: []string{"http://x:1"}}, errNoUser, errDenied},
	"Cluster/MemberRemove":  {&pb.MemberRemoveRequest{ID: 1}, errNoUser, errDenied},
	"Cluster/MemberUpdate":  {&pb.MemberUpdateRequest{ID: 1}, errNoUser, errDenied},
	"Cluster/MemberPromote": {&pb.MemberPromoteRequest{ID: 1}, errNoUser, errDenied},
	"Cluster/MemberList":    {&pb.MemberListRequest{Linearizable: true}, errNoUser, nil},

	"Maintenance/Alarm":      {&pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE}, errNoUser, errDenied},
	"Maintenance/Status":     {&pb.StatusRequest{}, errNoUser, nil},
	"Maintenance/Defragment": {&pb.DefragmentRequest{}, errNoUser, errDenied},
	"Maintenance/Hash":       {&pb.HashRequest{}, errNoUser, errDenied},
	"Maintenance/HashKV":     {&pb.HashKVRequest{}, errNoUser, errDenied},
	"Maintenance/Snapshot":   {&pb.SnapshotRequest{}, errNoUser, errDenied},
	"Maintenance/MoveLeader": {&pb.MoveLeaderRequest{TargetID: 1}, errNoUser, errDenied},
	"Maintenance/Downgrade":  {&pb.DowngradeRequest{Action: pb.DowngradeRequest_CANCEL}, errNoUser, errDenied},

	"Auth/AuthStatus":           {&pb.AuthStatusRequest{}, nil, nil},
	"Auth/Authenticate":         {&pb.AuthenticateRequest{Name: "u", Password: "u"}, nil, nil},
	"Auth/AuthEnable":           {&pb.AuthEnableRequest{}, errNoUser, errDenied},
	"Auth/AuthDisable":          {&pb.AuthDisableRequest{}, errNoUser, errDenied},
	"Auth/UserAdd":              {&pb.AuthUserAddRequest{Name: "x", Password: "x"}, errNoUser, errDenied},
	"Auth/UserGet":              {&pb.AuthUserGetRequest{Name: "root"}, errNoUser, errDenied},
	"Auth/UserList":             {&pb.AuthUserListRequest{}, errNoUser, errDenied},
	"Auth/UserDelete":           {&pb.AuthUserDeleteRequest{Name: "x"}, errNoUser, errDenied},
	"Auth/UserChangePassword":   {&pb.AuthUserChangePasswordRequest{Name: "u", Password: "x"}, errNoUser, errDenied},
	"Auth/UserGrantRole":        {&pb.AuthUserGrantRoleRequest{User: "u", Role: "root"}, errNoUser, errDenied},
	"Auth/UserRevokeRole":       {&pb.AuthUserRevokeRoleRequest{Name: "u", Role: "u"}, errNoUser, errDenied},
	"Auth/RoleAdd":              {&pb.AuthRoleAddRequest{Name: "x"}, errNoUser, errDenied},
	"Auth/RoleGet":              {&pb.AuthRoleGetRequest{Role: "root"}, errNoUser, errDenied},
	"Auth/RoleList":             {&pb.AuthRoleListRequest{}, errNoUser, errDenied},
	"Auth/RoleDelete":           {&pb.AuthRoleDeleteRequest{Role: "u"}, errNoUser, errDenied},
	"Auth/RoleGrantPermission":  {&pb.AuthRoleGrantPermissionRequest{Name: "u", Perm: &authpb.Permission{Key: []byte("k")}}, errNoUser, errDenied},
	"Auth/RoleRevokePermission": {&pb.AuthRoleRevokePermissionRequest{Role: "u", Key: []byte("x")}, errNoUser, errDenied},

	"Lock/Lock":   {&v3lockpb.LockRequest{Name: []byte("k"), Lease: 7}, lockErr(errNoUser), lockErr(errDenied)},
	"Lock/Unlock": {&v3lockpb.UnlockRequest{Key: []byte("k")}, lockErr(errNoUser), lockErr(errDenied)},

	"Election/Campaign": {&v3electionpb.CampaignRequest{Name: []byte("k"), Lease: 7}, lockErr(errNoUser), lockErr(errDenied)},
	"Election/Proclaim": {&v3electionpb.ProclaimRequest{
		Leader: &v3electionpb.LeaderKey{Name: []byte("k"), Key: []byte("k/7"), Rev: 1, Lease: 7},
	}, lockErr(errNoUser), lockErr(errDenied)},
	"Election/Leader": {&v3electionpb.LeaderRequest{Name: []byte("k")}, lockErr(errNoUser), lockErr(errDenied)},
	// Like etcd's, an observation that can't be made ends without a word.
	"Election/Observe": {&v3electionpb.LeaderRequest{Name: []byte("k")}, io.EOF, io.EOF},
	"Election/Resign": {&v3electionpb.ResignRequest{
		Leader: &v3electionpb.LeaderKey{Name: []byte("k"), Key: []byte("k/7"), Rev: 1, Lease: 7},
	}, lockErr(errNoUser), lockErr(errDenied)},
}

// Every call of every service asks who calls. A call that is not in the table, or
// that is there in vain, fails the test: nothing can be forgotten.
func TestEveryCallAsksWhoCalls(t *testing.T) {
	t.Parallel()
	s := serveUsers(t)
	s.addUser("u")
	s.addRole("u")
	s.grantRole("u", "u")
	s.Grant(7, 600)
	s.PutRequest(&pb.PutRequest{Key: []byte("k"), Lease: 7})
	s.enable()
	left := len(callRights)
	for _, service := range []grpc.ServiceDesc{
		pb.KV_ServiceDesc, pb.Watch_ServiceDesc, pb.Lease_ServiceDesc, pb.Cluster_ServiceDesc, pb.Maintenance_ServiceDesc,
		pb.Auth_ServiceDesc, v3lockpb.Lock_ServiceDesc, v3electionpb.Election_ServiceDesc,
	} {
		short := service.ServiceName[strings.LastIndexByte(service.ServiceName, '.')+1:]
		var methods []string
		for _, m := range service.Methods {
			methods = append(methods, m.MethodName)
		}
		for _, m := range service.Streams {
			methods = append(methods, m.StreamName)
		}
		for _, m := range methods {
			want, ok := callRights[short+"/"+m]
			if !ok {
				t.Errorf("%s/%s is not in the table", short, m)
				continue
			}
			left--
			full := fmt.Sprintf("/%s/%s", service.ServiceName, m)
			harness.WantStatus(t, full+" of nobody", s.invoke(s.as(""), full, want.request), want.nobody)
			harness.WantStatus(t, full+" with a bad token", s.invoke(withToken(s.Bound(), "x.1"), full, want.request), badToken(short, m))
			harness.WantStatus(t, full+" of a user", s.invoke(s.as("u"), full, want.request), want.user)
		}
	}
	if left != 0 {
		t.Errorf("%d calls of the table are of no service", left)
	}
	// What a user may ask about itself, and what needs no right.
	for full, request := range map[string]proto.Message{
		"/etcdserverpb.Auth/UserGet":          &pb.AuthUserGetRequest{Name: "u"},
		"/etcdserverpb.Auth/RoleGet":          &pb.AuthRoleGetRequest{Role: "u"},
		"/etcdserverpb.Maintenance/Alarm":     &pb.AlarmRequest{Action: pb.AlarmRequest_GET},
		"/etcdserverpb.Lease/LeaseTimeToLive": &pb.LeaseTimeToLiveRequest{ID: 7},
		"/etcdserverpb.Lease/LeaseRevoke":     &pb.LeaseRevokeRequest{ID: s.lonelyLease()},
	} {
		harness.WantStatus(t, full+" of a user", s.invoke(s.as("u"), full, request), nil)
	}
}

// badToken is what a call answers to a token that nobody was given.
func badToken(service, method string) error {
	switch {
	case method == "Authenticate":
		return nil
	case method == "Observe":
		return io.EOF
	case service == "Lock", service == "Election":
		return lockErr(rpctypes.ErrGRPCInvalidAuthToken)
	default:
		return rpctypes.ErrGRPCInvalidAuthToken
	}
}

// lonelyLease returns a lease without keys.
func (s *guarded) lonelyLease() int64 {
	s.T.Helper()
	resp, err := s.Lease.LeaseGrant(s.as("u"), &pb.LeaseGrantRequest{TTL: 600})
	return harness.Must(s.T, resp, err).ID
}

// invoke makes a call as a stream, which any call is, and returns the error of the
// first answer. A watch tells of its refusal in that.
func (s *guarded) invoke(ctx context.Context, method string, request proto.Message) error {
	s.T.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.Conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(request); err != nil {
		return err
	}
	if method != "/etcdserverpb.Watch/Watch" {
		if err := stream.CloseSend(); err != nil {
			return err
		}
		return stream.RecvMsg(&emptypb.Empty{})
	}
	var resp pb.WatchResponse
	if err := stream.RecvMsg(&resp); err != nil || !resp.Canceled {
		return err
	}
	for _, known := range []error{errNoUser, errDenied, rpctypes.ErrGRPCInvalidAuthToken} {
		if resp.CancelReason == known.Error() {
			return known
		}
	}
	return status.Error(codes.Unknown, resp.CancelReason)
}
