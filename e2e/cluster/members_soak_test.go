//go:build soak

package cluster

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// While members come and go clients that know all nodes see no error that they would not see of etcd, but for how
// connections end.
func TestErrorsOfMembers(t *testing.T) {
	etcd := filepath.Join(t.TempDir(), "etcd")
	if out, err := exec.Command("go", "build", "-C", "../../bench/peers", "-o", etcd, "go.etcd.io/etcd/server/v3").CombinedOutput(); err != nil {
		t.Fatalf("build etcd: %v: %s", err, out)
	}
	server, err := harness.Server()
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(t *testing.T, binary string, args ...string) []string{"replace": replaceAll, "grow and shrink": growAndShrink} {
		t.Run(name, func(t *testing.T) {
			allowed := change(t, etcd)
			for _, shards := range []int{1, 4} {
				for _, seen := range change(t, server, splitsFlag(shards)...) {
					connection := strings.HasPrefix(seen, "Unavailable: ") && !strings.Contains(seen, "etcdserver: ")
					if !connection && !slices.Contains(allowed, seen) {
						t.Errorf("%d shards: clients see %q, of etcd they see %q", shards, seen, allowed)
					}
				}
			}
		})
	}
}
