package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// series returns the value of a line of /metrics, "" where there is none.
func series(t *testing.T, r *running, name string) string {
	t.Helper()
	_, page, _ := call(t, r, http.MethodGet, "/metrics")
	_, rest, _ := strings.Cut(page, "\n"+name+" ")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

// A defragmentation shows while it runs.
func TestDefragmentationShows(t *testing.T) {
	r := start(t, nil)
	const name = "etcd_disk_defrag_inflight"
	during := ""
	r.set(func() { r.before = func(context.Context) { during = series(t, r, name) } })
	_, err := r.maintenance.Defragment(t.Context(), &pb.DefragmentRequest{})
	check(t, err)
	if after := series(t, r, name); during != "1" || after != "0" {
		t.Errorf("%s defragmentations while one runs, %s afterwards", during, after)
	}
}

// Clients can't make labels without end.
func TestClientVersionsAreBounded(t *testing.T) {
	m := newClientMetrics()
	m.count("unary", noVersion)
	m.count("unary", strings.Repeat("9", maxVersionLength+1))
	for i := range 2 * maxClientVersions {
		m.count("unary", fmt.Sprint(i))
		m.count("unary", "0")
	}
	registry := prometheus.NewRegistry()
	check(t, registry.Register(m.requests))
	families, err := registry.Gather()
	check(t, err)
	got := make(map[string]float64)
	for _, m := range families[0].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "client_api_version" {
				got[l.GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	// Those that are told apart, unknown among them, and one for all others.
	if len(got) != maxClientVersions+1 {
		t.Errorf("%d versions, want %d", len(got), maxClientVersions+1)
	}
	for version, want := range map[string]float64{"0": 2*maxClientVersions + 1, noVersion: 1, otherVersion: 2 + maxClientVersions} {
		if got[version] != want {
			t.Errorf("%v calls of version %s, want %v", got[version], version, want)
		}
	}
}

// TestRequestTypes makes requests of every type that is measured and looks for the
// type, which is etcd's, and for whether they succeeded.
func TestRequestTypes(t *testing.T) {
	r := start(t, nil)
	ctx, key := t.Context(), []byte("k")
	read := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key}}}
	write := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key}}}
	for _, tc := range []struct {
		kind string
		do   func() error
	}{
		{"Put", func() error { _, err := r.kv.Put(ctx, &pb.PutRequest{Key: key}); return err }},
		{"Range", func() error { _, err := r.kv.Range(ctx, &pb.RangeRequest{Key: key}); return err }},
		{"Txn", func() error { _, err := r.kv.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{write}}); return err }},
		{"ReadonlyTxn", func() error { _, err := r.kv.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{read}}); return err }},
		{"DeleteRange", func() error { _, err := r.kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: key}); return err }},
		{"Compaction", func() error { _, err := r.kv.Compact(ctx, &pb.CompactionRequest{Revision: 2}); return err }},
		{"Compaction", func() error { _, err := r.kv.Compact(ctx, &pb.CompactionRequest{Revision: 2}); return err }},
		{"LeaseGrant", func() error { _, err := r.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: 1, TTL: 9}); return err }},
		{"LeaseRevoke", func() error { _, err := r.lease.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: 1}); return err }},
		{"Alarm", func() error {
			_, err := r.maintenance.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE})
			return err
		}},
		{"AuthUserAdd", func() error {
			_, err := r.auth.UserAdd(ctx, &pb.AuthUserAddRequest{Name: "root", Password: "p"})
			return err
		}},
		{"AuthRoleAdd", func() error { _, err := r.auth.RoleAdd(ctx, &pb.AuthRoleAddRequest{Name: "root"}); return err }},
		{"AuthUserGrantRole", func() error {
			_, err := r.auth.UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: "root", Role: "root"})
			return err
		}},
		{"AuthEnable", func() error { _, err := r.auth.AuthEnable(ctx, &pb.AuthEnableRequest{}); return err }},
		{"Authenticate", func() error {
			_, err := r.auth.Authenticate(ctx, &pb.AuthenticateRequest{Name: "root", Password: "p"})
			return err
		}},
	} {
		count := func(success bool) string {
			return series(t, r, fmt.Sprintf(`etcd_server_request_duration_seconds_count{success="%t",type=%q}`, success, tc.kind))
		}
		before := map[bool]string{true: count(true), false: count(false)}
		ok := tc.do() == nil
		if count(ok) == before[ok] || count(!ok) != before[!ok] {
			t.Errorf("%s, which succeeded: %t, is not counted so", tc.kind, ok)
		}
	}
}

// Names and types of metrics are taken once: a second server in a registry fails.
func TestMetricsRegisterOnce(t *testing.T) {
	n := newNode(t)
	c := n.config(t)
	c.Metrics.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "etcd_server_client_requests_total"}))
	if _, err := NewServer(c); err == nil {
		t.Error("a server's metrics took the place of others")
	}
}
