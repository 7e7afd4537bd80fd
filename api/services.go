package api

import (
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
	"github.com/latchkey-db/latchkey/lock"
)

// services are the gRPC services of a server. Lock, Election and Locks stand on those of keys and
// leases, by the same values that clients are served by.
type services struct {
	kv          pb.KVServer
	watch       pb.WatchServer
	lease       pb.LeaseServer
	cluster     pb.ClusterServer
	auth        pb.AuthServer
	maintenance pb.MaintenanceServer
	lock        v3lockpb.LockServer
	election    v3electionpb.ElectionServer
	locks       latchkeyv1.LocksServer
	health      *health.Server
}

// services makes the services.
func (s *Server) services() *services {
	c := &s.config
	h := headers{cluster: c.Cluster, revision: c.Maintenance.Revision}
	ru := &rules{
		maxTxnOps:       c.MaxTxnOps,
		maxRequestBytes: c.MaxRequestBytes,
		envelope:        envelopeOf(c.Cluster.MemberID()),
		minLeaseTTL:     c.shortestLease(),
	}
	admit := &admission{cluster: c.Cluster, size: c.Maintenance.DBSize, quota: c.QuotaBytes, log: s.log}
	gate := &gate{users: c.Users, tokens: c.Tokens, certificates: c.CertificateUsers, log: s.log}
	kv := &kvService{store: c.Store, headers: h, rules: ru, admit: admit, gate: gate}
	leases := &leaseService{leases: c.Leases, headers: h, rules: ru, admit: admit, streams: s.streams, gate: gate}
	all := &services{
		kv: kv,
		watch: &watchService{
			watches:  c.Watches,
			headers:  h,
			streams:  s.streams,
			metrics:  s.watches,
			gate:     gate,
			maxBytes: c.MaxRequestBytes + messageOverhead,
			interval: c.ProgressInterval,
		},
		lease:   leases,
		cluster: &clusterService{cluster: c.Cluster, headers: h, gate: gate},
		auth: &authService{
			users: c.Users, tokens: c.Tokens, gate: gate, headers: h, rules: ru, cost: c.BcryptCost, log: s.log,
		},
		maintenance: &maintenanceService{
			node: c.Maintenance, cluster: c.Cluster, headers: h, gate: gate, metrics: s.upkeep, quota: c.QuotaBytes, spool: c.SnapshotDir,
		},
		health: s.health,
	}
	below := lockStore{kv: kv, lease: leases, watches: c.Watches}
	s.locks = lock.New(lock.Config{Store: below, Node: below, Peers: c.Peers, Patience: c.ElectionTimeout, Now: time.Now})
	t := turns{locks: s.locks, streams: s.streams, headers: h}
	all.lock, all.election = &lockService{turns: t}, &electionService{turns: t}
	all.locks = &locksService{locks: s.locks, streams: s.streams}
	return all
}

// register adds the services to a gRPC server.
func (a *services) register(g *grpc.Server) {
	pb.RegisterKVServer(g, a.kv)
	pb.RegisterWatchServer(g, a.watch)
	pb.RegisterLeaseServer(g, a.lease)
	pb.RegisterClusterServer(g, a.cluster)
	pb.RegisterAuthServer(g, a.auth)
	pb.RegisterMaintenanceServer(g, a.maintenance)
	v3lockpb.RegisterLockServer(g, a.lock)
	v3electionpb.RegisterElectionServer(g, a.election)
	latchkeyv1.RegisterLocksServer(g, a.locks)
	healthpb.RegisterHealthServer(g, a.health)
	a.health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
}
