package differential

import (
	"context"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// exported is what can be told of a metric without its values.
type exported struct {
	Type string
	// Labels are the names of the labels, in order; Buckets the bounds of a
	// histogram's.
	Labels, Buckets []string
}

var (
	typeLine   = regexp.MustCompile(`^# TYPE (\S+) (\S+)$`)
	seriesLine = regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})? \S+$`)
	labelPair  = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
)

// exportedBy returns what a server's /metrics shows, by name.
func exportedBy(t *testing.T, s *server) map[string]*exported {
	t.Helper()
	resp, err := http.Get("http://" + s.address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]*exported)
	var current *exported
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		if m := typeLine.FindStringSubmatch(line); m != nil {
			current = &exported{Type: m[2]}
			all[m[1]] = current
		}
		m := seriesLine.FindStringSubmatch(line)
		if m == nil || current == nil {
			continue
		}
		var labels []string
		for _, l := range labelPair.FindAllStringSubmatch(m[2], -1) {
			switch {
			case l[1] != "le":
				labels = append(labels, l[1])
			case !slices.Contains(current.Buckets, l[2]):
				current.Buckets = append(current.Buckets, l[2])
			}
		}
		slices.Sort(labels)
		current.Labels = labels
	}
	return all
}

// TestMetricsAlike checks that whatever Latchkey serves under a name of etcd's has
// etcd's type, labels and buckets.
func TestMetricsAlike(t *testing.T) {
	servers := []*server{startEtcd(t, "etcd"), startLatchkey(t)}
	for _, s := range servers {
		useAll(t.Context(), t, s)
	}
	etcd, latchkey := exportedBy(t, servers[0]), exportedBy(t, servers[1])
	compared := 0
	for name, got := range latchkey {
		want := etcd[name]
		switch {
		case !strings.HasPrefix(name, "etcd_") && !strings.HasPrefix(name, "grpc_") && !strings.HasPrefix(name, "os_fd_"):
			continue
		case want == nil:
			t.Errorf("etcd has no %s", name)
			continue
		}
		compared++
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-etcd +latchkey):\n%s", name, diff)
		}
	}
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range etcd {
		of := strings.HasPrefix(name, "etcd_") || strings.HasPrefix(name, "os_fd_")
		if of && latchkey[name] == nil && !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/metrics.md says nothing of etcd's %s, which is not served", name)
		}
	}
	if compared < 50 {
		t.Errorf("%d metrics compared", compared)
	}
}

// useAll makes a server use metrics that show nothing before.
func useAll(ctx context.Context, t *testing.T, s *server) {
	t.Helper()
	if _, err := s.kv.Put(ctx, &pb.PutRequest{Key: keyA}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.kv.Range(ctx, &pb.RangeRequest{Key: keyA}); err != nil {
		t.Fatal(err)
	}
	for _, action := range []pb.AlarmRequest_AlarmAction{pb.AlarmRequest_ACTIVATE, pb.AlarmRequest_DEACTIVATE} {
		r := &pb.AlarmRequest{Action: action, MemberID: s.memberID, Alarm: pb.AlarmType_NOSPACE}
		if _, err := s.maint.Alarm(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/health", "/readyz"} {
		resp, err := http.Get("http://" + s.address + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
}
