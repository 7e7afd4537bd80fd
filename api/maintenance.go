package api

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// What this server says of its version: that of the etcd whose API it speaks.
const (
	// ServerVersion is the version of etcd whose behaviour this server keeps.
	// Clients read from it which calls they may make.
	ServerVersion = "3.7.3"
	// ClusterVersion is the version that all nodes of the cluster understand, and
	// that of the stored data.
	ClusterVersion = "3.7.0"

	clusterMajor, clusterMinor = 3, 7
	// clusterVersionShort is ClusterVersion as downgrade answers give it.
	clusterVersionShort = "3.7"
)

var (
	errNoDowngrade = unimplemented("latchkey: there is no older version to downgrade to")
	// errTransferTimeout is what etcd's leader answers where the transferee does not take over.
	errTransferTimeout = unknown("etcdserver: request timed out, leader transfer took too long")
)

// maintenanceService is etcd's Maintenance service.
type maintenanceService struct {
	pb.UnsafeMaintenanceServer

	node    Maintenance
	cluster Cluster
	headers headers
	gate    *gate
	metrics *maintenanceMetrics
	// quota is what Status shows: the quota in force, negative for none.
	quota int64
	// spool is the directory in which a backup waits to be sent.
	spool string
}

var _ pb.MaintenanceServer = (*maintenanceService)(nil)

// Status tells how this node is.
func (s *maintenanceService) Status(ctx context.Context, _ *pb.StatusRequest) (*pb.StatusResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, toStatus(err)
	}
	if err := s.gate.require(ctx, needUser); err != nil {
		return nil, err
	}
	node := s.node.Status()
	resp := &pb.StatusResponse{
		Header:  s.headers.current(),
		Version: ServerVersion,
		// etcd's file is never empty, and etcdctl divides by its size.
		DbSize:           max(node.DBSize, 1),
		DbSizeInUse:      node.DBSizeInUse,
		DbSizeQuota:      s.quota,
		Leader:           s.cluster.Leader(),
		RaftIndex:        node.RaftIndex,
		RaftAppliedIndex: node.RaftAppliedIndex,
		RaftTerm:         s.cluster.Term(),
		StorageVersion:   ClusterVersion,
		DowngradeInfo:    &pb.DowngradeInfo{},
		IsLearner:        s.cluster.IsLearner(),
	}
	if resp.Leader == 0 {
		resp.Errors = append(resp.Errors, text(errNoLeader))
	}
	for _, a := range s.cluster.Alarms() {
		resp.Errors = append(resp.Errors, a.String())
	}
	return resp, nil
}

// Alarm lists, raises or clears alarms. The answer names those that the request
// asked for or concerned.
func (s *maintenanceService) Alarm(ctx context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, toStatus(err)
	}
	needs := needRoot
	if r.GetAction() == pb.AlarmRequest_GET {
		needs = needUser
	}
	if err := s.gate.require(ctx, needs); err != nil {
		return nil, err
	}
	var alarms []*pb.AlarmMember
	var err error
	switch r.GetAction() {
	case pb.AlarmRequest_GET:
		for _, a := range s.cluster.Alarms() {
			if r.GetAlarm() == pb.AlarmType_NONE || r.GetAlarm() == a.GetAlarm() {
				alarms = append(alarms, a)
			}
		}
	case pb.AlarmRequest_ACTIVATE:
		if r.GetAlarm() != pb.AlarmType_NONE {
			alarms, err = s.cluster.RaiseAlarm(ctx, r.GetMemberID(), r.GetAlarm())
		}
	case pb.AlarmRequest_DEACTIVATE:
		if r.GetAlarm() != pb.AlarmType_NONE {
			alarms, err = s.cluster.ClearAlarm(ctx, r.GetMemberID(), r.GetAlarm())
		}
	default:
		err = errUnknownMethod
	}
	if err != nil {
		return nil, toStatus(err)
	}
	return &pb.AlarmResponse{Header: s.headers.current(), Alarms: alarms}, nil
}

// Hash hashes the whole state of this node.
func (s *maintenanceService) Hash(ctx context.Context, _ *pb.HashRequest) (*pb.HashResponse, error) {
	if err := s.gate.require(ctx, needRoot); err != nil {
		return nil, err
	}
	hash, err := s.node.Hash(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	return &pb.HashResponse{Header: s.headers.current(), Hash: hash}, nil
}

// HashKV hashes the keyspace's history up to a revision.
func (s *maintenanceService) HashKV(ctx context.Context, r *pb.HashKVRequest) (*pb.HashKVResponse, error) {
	if err := s.gate.require(ctx, needRoot); err != nil {
		return nil, err
	}
	resp, err := s.node.HashKV(ctx, r.GetRevision())
	if err != nil {
		return nil, toStatus(err)
	}
	resp.Header = s.headers.fill(resp.Header)
	return resp, nil
}

// Defragment gives room of removed versions back to the disk. Its answer has no
// header.
func (s *maintenanceService) Defragment(ctx context.Context, _ *pb.DefragmentRequest) (*pb.DefragmentResponse, error) {
	if err := s.gate.require(ctx, needRoot); err != nil {
		return nil, err
	}
	s.metrics.defragmenting.Inc()
	defer s.metrics.defragmenting.Dec()
	defer since(s.metrics.defragment, time.Now())
	if err := s.node.Defragment(ctx); err != nil {
		return nil, toStatus(err)
	}
	return &pb.DefragmentResponse{}, nil
}

// MoveLeader makes another node lead. Where that node leads already there is
// nothing to do. Its answer has no header.
func (s *maintenanceService) MoveLeader(ctx context.Context, r *pb.MoveLeaderRequest) (*pb.MoveLeaderResponse, error) {
	if err := s.gate.require(ctx, needRoot); err != nil {
		return nil, err
	}
	leader := s.cluster.Leader()
	if leader != s.cluster.MemberID() {
		return nil, errNotLeader
	}
	members, err := s.cluster.Members(ctx, false)
	if err != nil {
		return nil, toStatus(err)
	}
	target := memberOf(members, r.GetTargetID())
	switch {
	case target == nil || target.GetIsLearner():
		return nil, errBadLeaderTransferee
	case target.GetID() == leader:
		return &pb.MoveLeaderResponse{}, nil
	}
	if err := s.node.MoveLeader(ctx, target.GetID()); err != nil {
		if errors.Is(err, ErrNotMoved) {
			err = errTransferTimeout
		}
		return nil, toStatus(err)
	}
	return &pb.MoveLeaderResponse{}, nil
}

// Downgrade judges the version to go back to. Cancelling succeeds: no downgrade
// is ever under way.
func (s *maintenanceService) Downgrade(ctx context.Context, r *pb.DowngradeRequest) (*pb.DowngradeResponse, error) {
	if err := s.gate.require(ctx, needRoot); err != nil {
		return nil, err
	}
	switch r.GetAction() {
	case pb.DowngradeRequest_VALIDATE, pb.DowngradeRequest_ENABLE:
		major, minor, ok := parseVersion(r.GetVersion())
		switch {
		case !ok:
			return nil, errDowngradeVersionFormat
		case major != clusterMajor || minor != clusterMinor-1:
			return nil, errDowngradeVersionTarget
		default:
			return nil, errNoDowngrade
		}
	case pb.DowngradeRequest_CANCEL:
		return &pb.DowngradeResponse{Header: s.headers.current(), Version: clusterVersionShort}, nil
	default:
		return nil, errUnknownMethod
	}
}

// parseVersion reads major and minor of a version like "3.6", "3.6.1" or
// "3.6.1-rc.0+build".
func parseVersion(v string) (major, minor int64, ok bool) {
	core, build, _ := strings.Cut(v, "+")
	core, pre, _ := strings.Cut(core, "-")
	parts := strings.Split(core, ".")
	if len(parts) == 2 && core == v {
		parts = append(parts, "0")
	}
	if len(parts) != 3 || !isVersionSuffix(pre) || !isVersionSuffix(build) {
		return 0, 0, false
	}
	var numbers [3]int64
	for i, p := range parts {
		n, err := strconv.ParseInt(p, 10, 64)
		if err != nil {
			return 0, 0, false
		}
		numbers[i] = n
	}
	return numbers[0], numbers[1], true
}

// isVersionSuffix tells whether s is empty or made of identifiers between dots.
func isVersionSuffix(s string) bool {
	if s == "" {
		return true
	}
	for id := range strings.SplitSeq(s, ".") {
		rest := strings.Trim(id, "-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
		if id == "" || rest != "" {
			return false
		}
	}
	return true
}
