package api

import (
	"context"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
)

var errFixedMembers = unimplemented("latchkey: changing the members of a cluster is not available yet")

// clusterService is etcd's Cluster service. It lists the nodes, and judges
// changes of them as far as etcd's answer is an error; it makes none.
type clusterService struct {
	pb.UnsafeClusterServer

	cluster Cluster
	headers headers
	gate    *gate
}

var _ pb.ClusterServer = (*clusterService)(nil)

// MemberList lists the nodes. Its header has no revision, like that of every
// answer of this service.
func (s *clusterService) MemberList(ctx context.Context, r *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, toStatus(err)
	}
	members, err := s.cluster.Members(ctx, r.GetLinearizable())
	if err != nil {
		return nil, toStatus(err)
	}
	if err := s.gate.require(ctx, needUser); err != nil {
		return nil, err
	}
	return &pb.MemberListResponse{Header: s.headers.of(0), Members: members}, nil
}

// MemberAdd judges the addresses of a new node.
func (s *clusterService) MemberAdd(ctx context.Context, r *pb.MemberAddRequest) (*pb.MemberAddResponse, error) {
	urls, err := types.NewURLs(r.GetPeerURLs())
	if err != nil {
		return nil, errMemberBadURLs
	}
	if err := s.gate.require(ctx, needRoot); err != nil {
		return nil, err
	}
	members, err := s.cluster.Members(ctx, true)
	if err != nil {
		return nil, toStatus(err)
	}
	for _, m := range members {
		if sharesURL(m, urls.StringSlice()) {
			return nil, errPeerURLExist
		}
	}
	return nil, errFixedMembers
}

// MemberRemove judges whether a node can go: enough must stay.
func (s *clusterService) MemberRemove(
	ctx context.Context, r *pb.MemberRemoveRequest,
) (*pb.MemberRemoveResponse, error) {
	if err := s.gate.require(ctx, needRoot); err != nil {
		return nil, err
	}
	members, err := s.cluster.Members(ctx, true)
	if err != nil {
		return nil, toStatus(err)
	}
	if memberOf(members, r.GetID()) == nil {
		return nil, errMemberNotFound
	}
	voters, started := 0, 0
	for _, m := range members {
		if m.GetID() == r.GetID() || m.GetIsLearner() {
			continue
		}
		voters++
		if m.GetName() != "" {
			started++
		}
	}
	if started < voters/2+1 {
		return nil, errNotEnoughStartedMember
	}
	return nil, errFixedMembers
}

// MemberUpdate judges the new addresses of a node.
func (s *clusterService) MemberUpdate(
	ctx context.Context, r *pb.MemberUpdateRequest,
) (*pb.MemberUpdateResponse, error) {
	if err := s.gate.require(ctx, needRoot); err != nil {
		return nil, err
	}
	members, err := s.cluster.Members(ctx, true)
	if err != nil {
		return nil, toStatus(err)
	}
	if memberOf(members, r.GetID()) == nil {
		return nil, errMemberNotFound
	}
	for _, m := range members {
		if m.GetID() != r.GetID() && sharesURL(m, r.GetPeerURLs()) {
			return nil, errPeerURLExist
		}
	}
	return nil, errFixedMembers
}

// MemberPromote judges whether a node is one that could be promoted.
func (s *clusterService) MemberPromote(
	ctx context.Context, r *pb.MemberPromoteRequest,
) (*pb.MemberPromoteResponse, error) {
	if err := s.gate.require(ctx, needRoot); err != nil {
		return nil, err
	}
	members, err := s.cluster.Members(ctx, true)
	if err != nil {
		return nil, toStatus(err)
	}
	m := memberOf(members, r.GetID())
	switch {
	case m == nil:
		return nil, errMemberNotFound
	case !m.GetIsLearner():
		return nil, errMemberNotLearner
	default:
		return nil, errFixedMembers
	}
}

func memberOf(members []*pb.Member, id uint64) *pb.Member {
	for _, m := range members {
		if m.GetID() == id {
			return m
		}
	}
	return nil
}

// sharesURL tells whether m has one of the peer addresses.
func sharesURL(m *pb.Member, urls []string) bool {
	return slices.ContainsFunc(m.GetPeerURLs(), func(u string) bool { return slices.Contains(urls, u) })
}
