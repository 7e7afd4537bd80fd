//go:build soak

package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// etcdsTests are etcd's own tests of members, by the package in the module go.etcd.io/etcd/tests/v3.
var etcdsTests = map[string]string{
	"common": "^(TestMember|TestAuthMember)",
	"e2e":    "^(TestCtlV3Member|TestCtlV3ConsistentMemberList|TestMemberReplace|TestRemoveNonExistingMember|TestRuntimeReconfig)",
}

// inEtcdsPlace starts Latchkey where etcd's tests start etcd, and says that it serves in the words that they wait for.
const inEtcdsPlace = `#!/bin/bash
exec %q %s "$@" > >(exec sed -u 's/serving clients/& ready to serve client requests/') 2>&1
`

// alone runs a command in a network of its own, since etcd's tests have fixed ports.
const alone = `ip link set lo up && exec "$@"`

// etcd's tests of members, which the Go command fetches, pass with Latchkey in etcd's place.
func TestEtcdsMemberTests(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a network of its own takes root")
	}
	dir := t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v: %s", name, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	version, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", "go.etcd.io/etcd/client/v3").Output()
	harness.Must(t, "version", err)
	module := func(name string) string { return "go.etcd.io/etcd/" + name + "@" + strings.TrimSpace(string(version)) }
	run("go", "mod", "init", "etcdtests")
	run("go", "get", "-t", module("tests/v3/common"), module("tests/v3/e2e"), module("etcdctl/v3"), module("etcdutl/v3"))
	run("go", "build", "-o", "bin/etcdctl", "go.etcd.io/etcd/etcdctl/v3")
	run("go", "build", "-o", "bin/etcdutl", "go.etcd.io/etcd/etcdutl/v3")
	server, err := harness.Server()
	harness.Must(t, server, err)
	failed := regexp.MustCompile(`(?m)^\s*--- (FAIL|SKIP): .*$`)
	for name, tests := range etcdsTests {
		run("go", "test", "-c", "-tags", "e2e", "-o", "bin/"+name+".test", "go.etcd.io/etcd/tests/v3/"+name)
		source := run("go", "list", "-tags", "e2e", "-f", "{{.Dir}}", "go.etcd.io/etcd/tests/v3/"+name)
		for shards, splits := range map[int]string{1: "", 4: harness.SplitsFlag + "=c,k,t"} {
			t.Run(fmt.Sprintf("%s, %d shards", name, shards), func(t *testing.T) {
				bin := t.TempDir()
				for _, tool := range []string{"etcdctl", "etcdutl"} {
					harness.Must(t, tool, os.Symlink(filepath.Join(dir, "bin", tool), filepath.Join(bin, tool)))
				}
				etcd := fmt.Appendf(nil, inEtcdsPlace, server, splits)
				harness.Must(t, "etcd", os.WriteFile(filepath.Join(bin, "etcd"), etcd, 0o700))
				cmd := exec.CommandContext(t.Context(), "unshare", "--net", "sh", "-c", alone, "sh",
					filepath.Join(dir, "bin", name+".test"), "-test.v", "-test.run", tests, "-bin-dir", bin)
				cmd.Dir = source
				out, err := cmd.CombinedOutput()
				passed := strings.Count(string(out), "--- PASS: ")
				if bad := failed.FindAllString(string(out), -1); err != nil || len(bad) > 0 || passed < 10 {
					t.Errorf("%v, %d passed, %q", err, passed, bad)
				}
				t.Logf("%d of etcd's tests pass", passed)
			})
		}
	}
}
