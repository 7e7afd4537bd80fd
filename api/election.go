package api

import (
	"context"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"

	"github.com/latchkey-db/latchkey/lock"
)

// electionService is etcd's Election service.
type electionService struct {
	v3electionpb.UnsafeElectionServer

	turns turns
}

var _ v3electionpb.ElectionServer = (*electionService)(nil)

// Campaign returns when the candidate is the leader.
func (s *electionService) Campaign(
	ctx context.Context, r *v3electionpb.CampaignRequest,
) (resp *v3electionpb.CampaignResponse, err error) {
	err = s.turns.take(ctx, errCampaignLost, func(ctx context.Context) error {
		won, err := s.turns.locks.Campaign(ctx, r.GetName(), r.GetLease(), r.GetValue())
		if err != nil {
			return err
		}
		leader := &v3electionpb.LeaderKey{Name: r.GetName(), Key: []byte(won.Key), Rev: won.Token, Lease: won.Lease}
		resp = &v3electionpb.CampaignResponse{Header: won.Header, Leader: leader}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// Proclaim changes the value of a leader.
func (s *electionService) Proclaim(
	ctx context.Context, r *v3electionpb.ProclaimRequest,
) (resp *v3electionpb.ProclaimResponse, err error) {
	if r.GetLeader() == nil {
		return nil, errNoLeaderKey
	}
	err = s.turns.take(ctx, errCampaignLost, func(ctx context.Context) error {
		header, err := s.turns.locks.Proclaim(ctx, place(r.GetLeader()), r.GetValue())
		resp = &v3electionpb.ProclaimResponse{Header: header}
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// Leader tells who leads.
func (s *electionService) Leader(
	ctx context.Context, r *v3electionpb.LeaderRequest,
) (resp *v3electionpb.LeaderResponse, err error) {
	err = s.turns.take(ctx, errCampaignLost, func(ctx context.Context) error {
		kv, header, err := s.turns.locks.Leader(ctx, r.GetName())
		resp = &v3electionpb.LeaderResponse{Header: header, Kv: kv}
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// Observe sends each leader and each value that it proclaims.
func (s *electionService) Observe(r *v3electionpb.LeaderRequest, stream v3electionpb.Election_ObserveServer) error {
	return s.turns.take(stream.Context(), errCampaignLost, func(ctx context.Context) error {
		return s.turns.locks.Observe(ctx, r.GetName(), func(leader *mvccpb.KeyValue, rev int64) error {
			return stream.Send(&v3electionpb.LeaderResponse{Header: s.turns.headers.of(rev), Kv: leader})
		})
	})
}

// Resign gives the leadership up, or a place in the queue.
func (s *electionService) Resign(
	ctx context.Context, r *v3electionpb.ResignRequest,
) (resp *v3electionpb.ResignResponse, err error) {
	if r.GetLeader() == nil {
		return nil, errNoLeaderKey
	}
	err = s.turns.take(ctx, errCampaignLost, func(ctx context.Context) error {
		header, err := s.turns.locks.Resign(ctx, place(r.GetLeader()))
		resp = &v3electionpb.ResignResponse{Header: header}
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// place is the place in the queue that a client names.
func place(k *v3electionpb.LeaderKey) lock.Place {
	return lock.Place{Key: string(k.GetKey()), Token: k.GetRev(), Lease: k.GetLease()}
}
