package api

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/latchkey-db/latchkey/auth"
)

// requestTimes measure how long the layers below take for a request.
type requestTimes struct{ seconds *prometheus.HistogramVec }

func newRequestTimes() requestTimes {
	return requestTimes{prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "etcd", Subsystem: "server", Name: "request_duration_seconds",
		Help:    "The time that requests take, by type and success.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
	}, []string{"type", "success"})}
}

// timed calls a layer below and measures how long it takes.
func timed[Request, Response any](
	ctx context.Context, t requestTimes, kind string, r Request, call func(context.Context, Request) (Response, error),
) (Response, error) {
	began := time.Now()
	resp, err := call(ctx, r)
	t.seconds.WithLabelValues(kind, strconv.FormatBool(err == nil)).Observe(time.Since(began).Seconds())
	return resp, err
}

// measured puts the measurement between the services and the layers below.
func (t requestTimes) measured(c *Config) {
	c.Store = measuredStore{c.Store, t}
	c.Leases = measuredLeases{c.Leases, t}
	c.Users = measuredUsers{c.Users, t}
	c.Cluster = measuredCluster{c.Cluster, t}
}

// measuredStore is a Store whose requests are measured.
type measuredStore struct {
	Store

	times requestTimes
}

// Range is the store's.
func (m measuredStore) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return timed(ctx, m.times, "Range", r, m.Store.Range)
}

// Put is the store's.
func (m measuredStore) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	return timed(ctx, m.times, "Put", r, m.Store.Put)
}

// DeleteRange is the store's.
func (m measuredStore) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	return timed(ctx, m.times, "DeleteRange", r, m.Store.DeleteRange)
}

// Txn is the store's.
func (m measuredStore) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	kind := "Txn"
	if isReadOnly(r) {
		kind = "ReadonlyTxn"
	}
	return timed(ctx, m.times, kind, r, m.Store.Txn)
}

// Compact is the store's.
func (m measuredStore) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	return timed(ctx, m.times, "Compaction", r, m.Store.Compact)
}

// measuredLeases are Leases whose changes are measured.
type measuredLeases struct {
	Leases

	times requestTimes
}

// LeaseGrant is the leases'.
func (m measuredLeases) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return timed(ctx, m.times, "LeaseGrant", r, m.Leases.LeaseGrant)
}

// LeaseRevoke is the leases'.
func (m measuredLeases) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	return timed(ctx, m.times, "LeaseRevoke", r, m.Leases.LeaseRevoke)
}

// measuredUsers are Users whose changes are measured.
type measuredUsers struct {
	users Users
	times requestTimes
}

// Users is the users'.
func (m measuredUsers) Users(ctx context.Context) (*auth.State, error) { return m.users.Users(ctx) }

// ProveUsers is the users'.
func (m measuredUsers) ProveUsers(ctx context.Context, users *auth.State) error {
	return m.users.ProveUsers(ctx, users)
}

// ConfirmUsers is the users'.
func (m measuredUsers) ConfirmUsers(ctx context.Context) (*auth.State, error) {
	return m.users.ConfirmUsers(ctx)
}

// ChangeUsers is the users'.
func (m measuredUsers) ChangeUsers(ctx context.Context, r *pb.InternalRaftRequest) error {
	_, err := timed(ctx, m.times, changeOf(r), r, func(ctx context.Context, r *pb.InternalRaftRequest) (struct{}, error) {
		return struct{}{}, m.users.ChangeUsers(ctx, r)
	})
	return err
}

// Login is the users'.
func (m measuredUsers) Login(ctx context.Context, user, prefix string) (token string, err error) {
	return timed(ctx, m.times, "Authenticate", user, func(ctx context.Context, user string) (string, error) {
		return m.users.Login(ctx, user, prefix)
	})
}

// changeOf returns etcd's name of a change of users.
func changeOf(r *pb.InternalRaftRequest) string {
	name := "Unknown"
	r.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if f.Message() == nil || f.Message().FullName() == proto.MessageName(r.GetHeader()) {
			return true
		}
		name = strings.TrimSuffix(string(f.Message().Name()), "Request")
		return false
	})
	return name
}

// measuredCluster is a Cluster whose changes are measured.
type measuredCluster struct {
	Cluster

	times requestTimes
}

// RaiseAlarm is the cluster's.
func (m measuredCluster) RaiseAlarm(ctx context.Context, member uint64, a pb.AlarmType) ([]*pb.AlarmMember, error) {
	return timed(ctx, m.times, "Alarm", a, func(ctx context.Context, a pb.AlarmType) ([]*pb.AlarmMember, error) {
		return m.Cluster.RaiseAlarm(ctx, member, a)
	})
}

// ClearAlarm is the cluster's.
func (m measuredCluster) ClearAlarm(ctx context.Context, member uint64, a pb.AlarmType) ([]*pb.AlarmMember, error) {
	return timed(ctx, m.times, "Alarm", a, func(ctx context.Context, a pb.AlarmType) ([]*pb.AlarmMember, error) {
		return m.Cluster.ClearAlarm(ctx, member, a)
	})
}
