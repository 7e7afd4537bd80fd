package api

import (
	"context"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
)

// clusterService is etcd's Cluster service.
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

// MemberAdd takes a member in, whose node is to be started then.
func (s *clusterService) MemberAdd(ctx context.Context, r *pb.MemberAddRequest) (*pb.MemberAddResponse, error) {
	urls, err := types.NewURLs(r.GetPeerURLs())
	if err != nil {
		return nil, errMemberBadURLs
	}
	if err := s.gate.require(ctx, needRoot); err != nil {
		return nil, err
	}
	id, err := s.cluster.AddMember(ctx, urls.StringSlice(), r.GetIsLearner())
	if err != nil {
		return nil, toStatus(err)
	}
	members, err := s.cluster.Members(ctx, false)
	if err != nil {
		return nil, toStatus(err)
	}
	added := &pb.Member{ID: id, PeerURLs: urls.StringSlice(), IsLearner: r.GetIsLearner()}
	return &pb.MemberAddResponse{Header: s.headers.of(0), Member: added, Members: members}, nil
}

// MemberRemove removes a member, if enough stay.
func (s *clusterService) MemberRemove(ctx context.Context, r *pb.MemberRemoveRequest) (*pb.MemberRemoveResponse, error) {
	header, members, err := s.change(ctx, func() error { return s.cluster.RemoveMember(ctx, r.GetID()) })
	if err != nil {
		return nil, err
	}
	members = slices.DeleteFunc(members, func(m *pb.Member) bool { return m.GetID() == r.GetID() }) // as its own node tells it
	return &pb.MemberRemoveResponse{Header: header, Members: members}, nil
}

// MemberUpdate changes the addresses of a member.
func (s *clusterService) MemberUpdate(ctx context.Context, r *pb.MemberUpdateRequest) (*pb.MemberUpdateResponse, error) {
	header, members, err := s.change(ctx, func() error {
		return s.cluster.UpdateMember(ctx, r.GetID(), r.GetPeerURLs())
	})
	if err != nil {
		return nil, err
	}
	return &pb.MemberUpdateResponse{Header: header, Members: members}, nil
}

// MemberPromote has a learner vote.
func (s *clusterService) MemberPromote(ctx context.Context, r *pb.MemberPromoteRequest) (*pb.MemberPromoteResponse, error) {
	header, members, err := s.change(ctx, func() error { return s.cluster.PromoteMember(ctx, r.GetID()) })
	if err != nil {
		return nil, err
	}
	return &pb.MemberPromoteResponse{Header: header, Members: members}, nil
}

// change carries a change out that root may make, and lists the members as this node knows them then.
func (s *clusterService) change(ctx context.Context, carry func() error) (*pb.ResponseHeader, []*pb.Member, error) {
	if err := s.gate.require(ctx, needRoot); err != nil {
		return nil, nil, err
	}
	if err := carry(); err != nil {
		return nil, nil, toStatus(err)
	}
	members, err := s.cluster.Members(ctx, false)
	return s.headers.of(0), members, toStatus(err)
}

func memberOf(members []*pb.Member, id uint64) *pb.Member {
	for _, m := range members {
		if m.GetID() == id {
			return m
		}
	}
	return nil
}
