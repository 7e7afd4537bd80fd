package api

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
)

const (
	fixedMembers = "latchkey: changing the members of a cluster is not available yet"
	notFound     = "etcdserver: member not found"
)

func TestMembersOfOne(t *testing.T) {
	r := start(t, nil)
	ctx := t.Context()
	list, err := r.cluster.MemberList(ctx, &pb.MemberListRequest{Linearizable: true})
	check(t, err)
	diff(t, &pb.MemberListResponse{Header: header(0), Members: r.members}, list)

	add := func(urls ...string) error {
		_, err := r.cluster.MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: urls})
		return err
	}
	wantStatus(t, add(), codes.InvalidArgument, "etcdserver: given member URLs are invalid")
	wantStatus(t, add("127.0.0.1:2380"), codes.InvalidArgument, "etcdserver: given member URLs are invalid")
	wantStatus(t, add("http://127.0.0.1:2380"), codes.FailedPrecondition, "etcdserver: Peer URLs already exists")
	wantStatus(t, add("http://127.0.0.1:2390"), codes.Unimplemented, fixedMembers)

	_, err = r.cluster.MemberRemove(ctx, &pb.MemberRemoveRequest{ID: 9})
	wantStatus(t, err, codes.NotFound, notFound)
	_, err = r.cluster.MemberRemove(ctx, &pb.MemberRemoveRequest{ID: testMember})
	wantStatus(t, err, codes.Unknown, "etcdserver: re-configuration failed due to not enough started members")

	_, err = r.cluster.MemberUpdate(ctx, &pb.MemberUpdateRequest{ID: 9})
	wantStatus(t, err, codes.NotFound, notFound)
	_, err = r.cluster.MemberUpdate(ctx, &pb.MemberUpdateRequest{ID: testMember, PeerURLs: []string{"http://a:1"}})
	wantStatus(t, err, codes.Unimplemented, fixedMembers)

	_, err = r.cluster.MemberPromote(ctx, &pb.MemberPromoteRequest{ID: 9})
	wantStatus(t, err, codes.NotFound, notFound)
	_, err = r.cluster.MemberPromote(ctx, &pb.MemberPromoteRequest{ID: testMember})
	wantStatus(t, err, codes.FailedPrecondition, "etcdserver: can only promote a learner member")
}

func TestMembersOfMany(t *testing.T) {
	r := start(t, nil)
	r.set(func() {
		r.members = append(r.members,
			&pb.Member{ID: 2, Name: "two", PeerURLs: []string{"http://two:2380"}},
			&pb.Member{ID: 3, PeerURLs: []string{"http://three:2380"}},
			&pb.Member{ID: 4, IsLearner: true})
	})
	ctx := t.Context()
	remove := func(id uint64) error {
		_, err := r.cluster.MemberRemove(ctx, &pb.MemberRemoveRequest{ID: id})
		return err
	}
	wantStatus(t, remove(2), codes.Unknown, "etcdserver: re-configuration failed due to not enough started members")
	wantStatus(t, remove(3), codes.Unimplemented, fixedMembers)
	_, err := r.cluster.MemberUpdate(ctx, &pb.MemberUpdateRequest{ID: 3, PeerURLs: []string{"http://two:2380"}})
	wantStatus(t, err, codes.FailedPrecondition, "etcdserver: Peer URLs already exists")
	_, err = r.cluster.MemberPromote(ctx, &pb.MemberPromoteRequest{ID: 4})
	wantStatus(t, err, codes.Unimplemented, fixedMembers)
}
