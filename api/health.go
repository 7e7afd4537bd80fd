package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/raft"
)

// healthChecks serves /health, /livez and /readyz.
type healthChecks struct {
	store   Store
	own     Maintenance
	cluster Cluster
	timeout time.Duration
	log     *slog.Logger

	success, failure prometheus.Counter
	last             *prometheus.GaugeVec
	total            *prometheus.CounterVec
}

// healthCheck is one named check. Its error says what is wrong.
type healthCheck struct {
	name string
	run  func(context.Context) error
}

// healthAnswer is the answer of /health.
type healthAnswer struct {
	Health string `json:"health"`
	Reason string `json:"reason"`
}

func newHealthChecks(c *Config) (*healthChecks, error) {
	name := func(n, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "etcd", Subsystem: "server", Name: n, Help: help}
	}
	h := &healthChecks{
		store:   c.Store,
		own:     c.Maintenance,
		cluster: c.Cluster,
		timeout: c.RequestTimeout,
		log:     c.Log,
		success: prometheus.NewCounter(prometheus.CounterOpts(
			name("health_success", "The total number of successful health checks"))),
		failure: prometheus.NewCounter(prometheus.CounterOpts(
			name("health_failures", "The total number of failed health checks"))),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts(
			name("healthcheck", "The result of each kind of healthcheck.")), []string{"type", "name"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts(
			name("healthchecks_total", "The total number of each kind of healthcheck.")),
			[]string{"type", "name", "status"}),
	}
	for _, m := range []prometheus.Collector{h.success, h.failure, h.last, h.total} {
		if err := c.Metrics.Register(m); err != nil {
			return nil, fmt.Errorf("register health metrics: %w", err)
		}
	}
	return h, nil
}

// install adds the end points to mux.
func (h *healthChecks) install(mux *http.ServeMux) {
	local := healthCheck{"serializable_read", func(ctx context.Context) error { return h.read(ctx, true) }}
	mux.Handle("/health", onlyGet(h.serveHealth))
	h.installGroup(mux, "livez", []healthCheck{local})
	h.installGroup(mux, "readyz", []healthCheck{
		{"data_corruption", h.checkCorruption},
		local,
		{"linearizable_read", func(ctx context.Context) error { return h.read(ctx, false) }},
		{"non_learner", h.checkLearner},
	})
}

// checkLearner fails where this node does not vote.
func (h *healthChecks) checkLearner(context.Context) error {
	if h.cluster.IsLearner() {
		return errLearner
	}
	return nil
}

// errLearner has etcd's text.
var errLearner = errors.New("node is a learner")

// serveHealth answers /health: whether this node serves clients. The parameter
// exclude passes over an alarm, serializable=true asks for this node alone.
func (h *healthChecks) serveHealth(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	answer := healthAnswer{Health: "true"}
	if reason := h.fault(r.Context(), query["exclude"], query.Get("serializable") == "true"); reason != "" {
		answer = healthAnswer{Health: "false", Reason: reason}
	}
	body, err := json.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if answer.Health != "true" {
		h.failure.Inc()
		h.log.LogAttrs(r.Context(), slog.LevelWarn, "a health check failed",
			slog.String("path", r.URL.Path), slog.String("reason", answer.Reason))
		http.Error(w, string(body), http.StatusServiceUnavailable)
		return
	}
	h.success.Inc()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write(body) // a client that is gone needs no answer
}

// fault returns why this node does not serve clients, or nothing.
func (h *healthChecks) fault(ctx context.Context, excluded []string, serializable bool) string {
	for _, a := range h.cluster.Alarms() {
		if slices.Contains(excluded, a.GetAlarm().String()) {
			continue
		}
		if _, known := pb.AlarmType_name[int32(a.GetAlarm())]; !known {
			return "ALARM UNKNOWN"
		}
		return "ALARM " + a.GetAlarm().String()
	}
	if !serializable && h.cluster.Leader() == 0 {
		return "RAFT NO LEADER"
	}
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	if err := h.read(ctx, serializable); err != nil {
		return "RANGE ERROR:" + err.Error()
	}
	return ""
}

// read proves that the store can be read, a serializable read on this node alone: what
// that could not read a new process would not either.
func (h *healthChecks) read(ctx context.Context, serializable bool) error {
	if serializable {
		if err := h.own.ReadOwn(ctx); err != nil {
			return errors.New(text(toStatus(err)))
		}
		return nil
	}
	_, err := h.store.Range(auth.With(ctx, auth.Server), &pb.RangeRequest{
		Key: []byte{0}, KeysOnly: true, Limit: 1,
	})
	if err != nil {
		return errors.New(text(toStatus(err)))
	}
	return nil
}

func (h *healthChecks) checkCorruption(context.Context) error {
	if hasAlarm(h.cluster.Alarms(), pb.AlarmType_CORRUPT) {
		return fmt.Errorf("alarm activated: %s", pb.AlarmType_CORRUPT)
	}
	return nil
}

// installGroup serves a group of checks together and each by itself.
func (h *healthChecks) installGroup(mux *http.ServeMux, group string, checks []healthCheck) {
	mux.Handle("/"+group, onlyGet(func(w http.ResponseWriter, r *http.Request) {
		excluded := r.URL.Query()["exclude"]
		wanted := slices.DeleteFunc(slices.Clone(checks), func(c healthCheck) bool {
			return slices.Contains(excluded, c.name)
		})
		h.serveGroup(w, r, group, wanted)
	}))
	for _, c := range checks {
		mux.Handle("/"+group+"/"+c.name, onlyGet(func(w http.ResponseWriter, r *http.Request) {
			h.serveGroup(w, r, group, []healthCheck{c})
		}))
	}
}

// serveGroup runs checks, all within the time of one request, and answers. What failed is
// always named, what passed where the parameter verbose asks for it.
func (h *healthChecks) serveGroup(w http.ResponseWriter, r *http.Request, group string, checks []healthCheck) {
	ctx, cancel := context.WithTimeoutCause(r.Context(), h.timeout, raft.ErrTimeout)
	defer cancel()
	var report strings.Builder
	failed := false
	for _, c := range checks {
		if err := c.run(ctx); err != nil {
			failed = true
			h.count(group, c.name, 0, "error")
			fmt.Fprintf(&report, "[-]%s failed: %v\n", c.name, err)
			continue
		}
		h.count(group, c.name, 1, "success")
		fmt.Fprintf(&report, "[+]%s ok\n", c.name)
	}
	if failed {
		h.log.LogAttrs(r.Context(), slog.LevelWarn, "a health check failed",
			slog.String("path", r.URL.Path), slog.String("reason", report.String()))
		http.Error(w, report.String(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !r.URL.Query().Has("verbose") {
		report.Reset()
	}
	report.WriteString("ok\n")
	_, _ = w.Write([]byte(report.String())) // a client that is gone needs no answer
}

func (h *healthChecks) count(group, name string, value float64, status string) {
	h.last.WithLabelValues(group, name).Set(value)
	h.total.WithLabelValues(group, name, status).Inc()
}
