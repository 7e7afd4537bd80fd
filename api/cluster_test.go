package api

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"

	"github.com/latchkey-db/latchkey/system"
)

func TestMembersOfOne(t *testing.T) {
	r := start(t, nil)
	list, err := r.cluster.MemberList(t.Context(), &pb.MemberListRequest{Linearizable: true})
	check(t, err)
	diff(t, &pb.MemberListResponse{Header: header(0), Members: r.members}, list)
	for _, urls := range [][]string{nil, {"127.0.0.1:2380"}} {
		_, err := r.cluster.MemberAdd(t.Context(), &pb.MemberAddRequest{PeerURLs: urls})
		wantStatus(t, err, codes.InvalidArgument, "etcdserver: given member URLs are invalid")
	}
}

// Answers have the members after the change, and headers without a revision.
func TestChangesOfMembers(t *testing.T) {
	r := start(t, nil)
	ctx := t.Context()
	one := r.members[0]
	two := &pb.Member{ID: 99, PeerURLs: []string{"http://two:2380"}, IsLearner: true}
	added, err := r.cluster.MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: two.PeerURLs, IsLearner: true})
	check(t, err)
	diff(t, &pb.MemberAddResponse{Header: header(0), Member: two, Members: []*pb.Member{one, two}}, added)
	promoted, err := r.cluster.MemberPromote(ctx, &pb.MemberPromoteRequest{ID: 99})
	check(t, err)
	two.IsLearner = false
	diff(t, &pb.MemberPromoteResponse{Header: header(0), Members: []*pb.Member{one, two}}, promoted)
	two.PeerURLs = []string{"http://two:1"}
	updated, err := r.cluster.MemberUpdate(ctx, &pb.MemberUpdateRequest{ID: 99, PeerURLs: two.PeerURLs})
	check(t, err)
	diff(t, &pb.MemberUpdateResponse{Header: header(0), Members: []*pb.Member{one, two}}, updated)
	removed, err := r.cluster.MemberRemove(ctx, &pb.MemberRemoveRequest{ID: 99})
	check(t, err)
	diff(t, &pb.MemberRemoveResponse{Header: header(0), Members: []*pb.Member{one}}, removed)
}

// A change that is refused says why, and changes nothing.
func TestRefusedChangesOfMembers(t *testing.T) {
	r := start(t, nil)
	r.set(func() { r.unchanged = system.ErrNotMember })
	_, err := r.cluster.MemberRemove(t.Context(), &pb.MemberRemoveRequest{ID: 9})
	wantStatus(t, err, codes.NotFound, "etcdserver: member not found")
	_, err = r.cluster.MemberAdd(t.Context(), &pb.MemberAddRequest{PeerURLs: []string{"http://a:1"}})
	wantStatus(t, err, codes.NotFound, "etcdserver: member not found")
}

// A node that does not vote answers serializable ranges, its status and backups alone.
func TestLearnerServesLittle(t *testing.T) {
	r := start(t, nil)
	ctx := t.Context()
	r.set(func() { r.learner = true })
	const text = "etcdserver: rpc not supported for learner"
	_, err := r.kv.Range(ctx, &pb.RangeRequest{Key: []byte("k")})
	wantStatus(t, err, codes.FailedPrecondition, text)
	_, err = r.kv.Put(ctx, &pb.PutRequest{Key: []byte("k")})
	wantStatus(t, err, codes.FailedPrecondition, text)
	_, err = r.cluster.MemberList(ctx, &pb.MemberListRequest{})
	wantStatus(t, err, codes.FailedPrecondition, text)
	w, err := r.watch.Watch(ctx)
	check(t, err)
	_, err = w.Recv()
	wantStatus(t, err, codes.FailedPrecondition, text)
	_, err = r.kv.Range(ctx, &pb.RangeRequest{Key: []byte("k"), Serializable: true})
	check(t, err)
	status, err := r.maintenance.Status(ctx, &pb.StatusRequest{})
	check(t, err)
	if !status.GetIsLearner() {
		t.Error("the status does not say so")
	}
}
