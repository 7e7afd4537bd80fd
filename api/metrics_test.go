package api

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestMetricsPage checks that docs/metrics.md is true: what it lists as served is
// served, what it lists as not is not.
func TestMetricsPage(t *testing.T) {
	page, err := os.ReadFile("../docs/metrics.md")
	check(t, err)
	served, missing, ok := strings.Cut(string(page), "## Not served")
	if !ok {
		t.Fatal("the page has not its two parts")
	}
	r := start(t, func(c *Config) { c.ExtensiveMetrics = true })
	r.put(t, "k", "v")
	call(t, r, http.MethodGet, "/health")
	call(t, r, http.MethodGet, "/readyz")
	_, body, _ := call(t, r, http.MethodGet, "/metrics")
	names := regexp.MustCompile("`((?:etcd|grpc|process)_[a-z_]+)")
	found := names.FindAllStringSubmatch(served, -1)
	if len(found) < 20 {
		t.Fatalf("the page lists %d metrics", len(found))
	}
	has := func(name string) bool {
		return regexp.MustCompile(`(?m)^` + name + `[{ ]`).MatchString(body)
	}
	for _, m := range found {
		if !has(m[1]) && !strings.HasPrefix(m[1], "process_") {
			t.Errorf("%s is not served", m[1])
		}
	}
	for _, m := range names.FindAllStringSubmatch(missing, -1) {
		if has(m[1]) && m[1] != "grpc_server_handled_total" {
			t.Errorf("%s is served", m[1])
		}
	}
}
