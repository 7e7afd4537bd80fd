package api

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/lease"
)

// leaseService is etcd's Lease service over Leases.
type leaseService struct {
	pb.UnsafeLeaseServer

	leases  Leases
	headers headers
	rules   *rules
	admit   *admission
	streams *streams
	gate    *gate
}

var _ pb.LeaseServer = (*leaseService)(nil)

// LeaseGrant makes a lease. A time to live below the shortest is raised to it.
func (s *leaseService) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	if err := s.admit.reserve(ctx, leaseOverhead); err != nil {
		return nil, err
	}
	resp, err := checked(ctx, s.gate, needUser, func(ctx context.Context) (*pb.LeaseGrantResponse, error) {
		if err := s.rules.size(ctx, r); err != nil {
			return nil, err
		}
		if err := s.admit.write(ctx, true); err != nil {
			return nil, err
		}
		if r.GetTTL() > maxLeaseTTL {
			return nil, errLeaseTTLTooLarge
		}
		return s.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{
			ID:  r.GetID(),
			TTL: max(r.GetTTL(), s.rules.minLeaseTTL),
		})
	})
	if err != nil {
		return nil, err
	}
	resp.Header = s.headers.fill(resp.Header)
	return resp, nil
}

// LeaseRevoke ends a lease and deletes its keys.
func (s *leaseService) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	resp, err := checked(ctx, s.gate, needUser, func(ctx context.Context) (*pb.LeaseRevokeResponse, error) {
		if err := s.rules.size(ctx, r); err != nil {
			return nil, err
		}
		if err := s.admit.write(ctx, false); err != nil {
			return nil, err
		}
		return s.leases.LeaseRevoke(ctx, r)
	})
	if err != nil {
		return nil, err
	}
	resp.Header = s.headers.fill(resp.Header)
	return resp, nil
}

// LeaseTimeToLive tells what is left of a lease. Without one it answers -1
// seconds, not an error.
func (s *leaseService) LeaseTimeToLive(
	ctx context.Context, r *pb.LeaseTimeToLiveRequest,
) (*pb.LeaseTimeToLiveResponse, error) {
	resp, err := checked(ctx, s.gate, needUser, func(ctx context.Context) (*pb.LeaseTimeToLiveResponse, error) {
		resp, err := s.leases.LeaseTimeToLive(ctx, r)
		if errors.Is(err, lease.ErrNotFound) {
			return &pb.LeaseTimeToLiveResponse{ID: r.GetID(), TTL: -1}, nil
		}
		return resp, err
	})
	if err != nil {
		return nil, err
	}
	resp.Header = s.headers.fill(resp.Header)
	return resp, nil
}

// LeaseLeases lists the leases.
func (s *leaseService) LeaseLeases(ctx context.Context, r *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	resp, err := checked(ctx, s.gate, needUser, func(ctx context.Context) (*pb.LeaseLeasesResponse, error) {
		return s.leases.LeaseLeases(ctx, r)
	})
	if err != nil {
		return nil, err
	}
	resp.Header = s.headers.fill(resp.Header)
	return resp, nil
}

// renew renews one lease. One that is not there gets the time to live 0.
func (s *leaseService) renew(ctx context.Context, id int64) (*pb.LeaseKeepAliveResponse, error) {
	return checked(ctx, s.gate, needUser, func(ctx context.Context) (*pb.LeaseKeepAliveResponse, error) {
		resp, err := s.leases.LeaseRenew(ctx, id)
		if errors.Is(err, lease.ErrNotFound) {
			return &pb.LeaseKeepAliveResponse{ID: id}, nil
		}
		return resp, err
	})
}

// LeaseKeepAlive renews leases as their ids come in. The answers come in the
// order in which the renewals are done.
func (s *leaseService) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	return newKeepAlive(s, stream).run()
}
