package api

import (
	"context"

	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
)

// electionService is etcd's Election service. A candidate whose own key goes while
// it waits hears of that at once.
type electionService struct {
	v3electionpb.UnsafeElectionServer

	callers *callers
}

var _ v3electionpb.ElectionServer = (*electionService)(nil)

// Campaign returns when the candidate is the leader.
func (s *electionService) Campaign(
	ctx context.Context, r *v3electionpb.CampaignRequest,
) (*v3electionpb.CampaignResponse, error) {
	ctx, c, err := s.callers.open(ctx, errCampaignLost)
	if err != nil {
		return nil, err
	}
	defer c.close()
	resp, err := v3election.NewElectionServer(c.client).Campaign(ctx, r)
	if err != nil {
		err = endOfCall(ctx, err)
		c.leave()
		return nil, err
	}
	switch kept, err := c.keeps(ctx); {
	case err != nil:
		return nil, endOfCall(ctx, err)
	case !kept:
		return nil, errCampaignLost
	}
	return resp, nil
}

// Proclaim changes the value of a leader.
func (s *electionService) Proclaim(
	ctx context.Context, r *v3electionpb.ProclaimRequest,
) (*v3electionpb.ProclaimResponse, error) {
	ctx, c, err := s.callers.open(ctx, errCampaignLost)
	if err != nil {
		return nil, err
	}
	defer c.close()
	resp, err := v3election.NewElectionServer(c.client).Proclaim(ctx, r)
	return resp, endOfCall(ctx, err)
}

// Leader tells who leads.
func (s *electionService) Leader(
	ctx context.Context, r *v3electionpb.LeaderRequest,
) (*v3electionpb.LeaderResponse, error) {
	ctx, c, err := s.callers.open(ctx, errCampaignLost)
	if err != nil {
		return nil, err
	}
	defer c.close()
	resp, err := v3election.NewElectionServer(c.client).Leader(ctx, r)
	return resp, endOfCall(ctx, err)
}

// Observe sends each leader and each value that it proclaims.
func (s *electionService) Observe(r *v3electionpb.LeaderRequest, stream v3electionpb.Election_ObserveServer) error {
	ctx, c, err := s.callers.open(stream.Context(), errCampaignLost)
	if err != nil {
		return err
	}
	defer c.close()
	err = v3election.NewElectionServer(c.client).Observe(r, stream)
	return endOfCall(ctx, err)
}

// Resign gives the leadership up, or a place in the queue.
func (s *electionService) Resign(
	ctx context.Context, r *v3electionpb.ResignRequest,
) (*v3electionpb.ResignResponse, error) {
	ctx, c, err := s.callers.open(ctx, errCampaignLost)
	if err != nil {
		return nil, err
	}
	defer c.close()
	resp, err := v3election.NewElectionServer(c.client).Resign(ctx, r)
	return resp, endOfCall(ctx, err)
}
