package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Starting returns what is served as MetricsTraffic while a node has no server yet: it is
// alive and not ready.
func Starting(metrics prometheus.Gatherer, log *slog.Logger) (http.Handler, error) {
	// What the checks measure counts from the server on.
	c := Config{
		Store: nothing{}, Maintenance: nothing{}, Cluster: nothing{}, Metrics: prometheus.NewRegistry(),
		RequestTimeout: DefaultRequestTimeout, Log: log,
	}
	checks, err := newHealthChecks(&c)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	checks.install(mux)
	mux.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	return mux, nil
}

// Handler returns what the server serves as t by HTTP, for a server of the caller's. Stop
// waits for what it serves.
func (s *Server) Handler(t Traffic) (http.Handler, error) {
	h := s.http[t]
	if h == nil {
		return nil, fmt.Errorf("serve HTTP: traffic %d has none", t)
	}
	return h.Handler, nil
}

// nothing is the layers below before they are there, as far as health checks ask.
type nothing struct {
	Store
	Maintenance
	Cluster
}

// Range finds no leader.
func (nothing) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	return nil, errNoLeader
}

// ReadOwn finds nothing that could be broken.
func (nothing) ReadOwn(context.Context) error { return nil }

// Leader is nobody.
func (nothing) Leader() uint64 { return 0 }

// Alarms are none.
func (nothing) Alarms() []*pb.AlarmMember { return nil }

// IsLearner is not known, and so does not keep anybody from being ready.
func (nothing) IsLearner() bool { return false }
