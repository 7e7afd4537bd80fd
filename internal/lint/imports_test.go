package lint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/latchkey-db/latchkey"

// allowed says for each package of the module which others it may import, tests
// left aside. Imports point down: api, lock -> router -> shard -> {internal/raft,
// mvcc, lease} -> internal/keys; internal/raft knows no machine that it drives.
// system, the system shard, stands beside router, which reads the map it keeps but
// never the other way round, and only internal/node and the commands wire them;
// placement is what both know of maps, as pure functions. A package without a row
// fails.
var allowed = map[string][]string{
	"cmd/latchkey": {"internal/command", "internal/config", "internal/datadir", "internal/node"},
	"bench":        {"api/latchkey/v1", "client", "internal/etcdlog", "internal/invariant"},
	"bench/outage": {"e2e/faults"},
	"bench/rounds": {"e2e/faults", "internal/freeport"},
	"e2e/faults":   {"e2e/faults/syncfs", "internal/etcdlog", "internal/freeport"},
	"e2e/soak":     {"e2e/faults"},
	"e2e/harness":  {"internal/etcdlog", "internal/freeport"},

	"e2e/cases":          {},
	"e2e/clients":        {},
	"e2e/cluster":        {},
	"e2e/differential":   {},
	"e2e/fencing":        {},
	"e2e/fencing/writer": {"fence", "fence/fencesql"},
	"e2e/faults/syncfs":  {},
	"e2e/histories":      {},
	"e2e/mixed":          {},
	"e2e/server":         {},
	"e2e/upgrade":        {},

	"internal/node": {
		"api", "auth", "lock", "lock/deadlock", "router", "placement", "system", "shard", "mvcc", "lease", "internal/config",
		"internal/datadir", "internal/etcdlog", "internal/invariant", "internal/keys", "internal/leadership", "internal/members", "internal/peer", "internal/raft", "internal/remote", "internal/restore",
	},

	"api":             {"api/latchkey/v1", "auth", "lock", "lock/deadlock", "router", "shard", "mvcc", "lease", "system", "internal/backup", "internal/invariant", "internal/keys", "internal/raft"},
	"api/latchkey/v1": {},
	"lock":            {"lock/deadlock", "lock/queue", "router", "mvcc", "internal/invariant", "internal/keys"},
	"lock/deadlock":   {},
	"lock/queue":      {},
	"router":          {"auth", "placement", "system", "shard", "mvcc", "lease", "internal/backup", "internal/commit", "internal/invariant", "internal/keys", "internal/raft", "internal/share"},
	"system":          {"auth", "placement", "internal/invariant", "internal/keys", "internal/raft"},
	"placement":       {"internal/invariant", "internal/keys"},
	"shard":           {"mvcc", "lease", "internal/commit", "internal/invariant", "internal/keys", "internal/raft"},
	"auth":            {"internal/invariant", "internal/keys"},
	"mvcc":            {"internal/invariant", "internal/keys"},
	"lease":           {"internal/invariant", "internal/keys"},

	// What clients and resources import knows nothing of the server.
	"client":                    {"api/latchkey/v1", "fence", "lock/queue"},
	"fence":                     {},
	"fence/fencegrpc":           {"fence"},
	"fence/fencepgx":            {"fence", "fence/internal/statements"},
	"fence/fencesql":            {"fence", "fence/internal/statements"},
	"fence/internal/statements": {"fence"},

	"internal/backup":       {},
	"internal/command":      {"api/latchkey/v1", "client", "internal/backup", "internal/config", "internal/datadir", "internal/etcdlog", "internal/etcdsnapshot", "internal/node", "internal/recovery", "placement"},
	"internal/commit":       {"internal/keys", "lease", "mvcc"},
	"internal/commitmodel":  {},
	"internal/config":       {"internal/invariant"},
	"internal/datadir":      {"internal/invariant"},
	"internal/etcdlog":      {},
	"internal/etcdsnapshot": {"internal/backup"},
	"internal/freeport":     {},
	"internal/invariant":    {},
	"internal/keys":         {"internal/invariant"},
	"internal/members":      {"placement", "system", "internal/raft"},
	"internal/leadership":   {"placement", "internal/invariant", "internal/raft"},
	"internal/lint":         {},
	"internal/peer":         {"internal/invariant", "internal/keys"},
	"internal/raft":         {"internal/invariant", "internal/keys", "internal/raftlog", "internal/share"},
	"internal/raftlog":      {"internal/invariant"},
	"internal/remote":       {"auth", "internal/commit", "internal/invariant", "internal/keys", "internal/peer", "internal/raft", "lease", "lock/deadlock", "mvcc", "placement", "router", "shard", "system"},
	"internal/recovery":     {"auth", "internal/backup", "internal/datadir", "internal/keys", "internal/raft", "placement", "shard", "system"},
	"internal/restore":      {"auth", "internal/backup", "internal/keys", "internal/raft", "lease", "mvcc", "placement", "system"},
	"internal/share":        {},
	"internal/sim":          {},
}

// confined says which packages alone may import a foreign one, by the prefix of
// its path.
var confined = map[string]struct {
	packages []string
	tests    bool // whether tests of all packages may, too
	// but are paths below the prefix that any package may import.
	but []string
}{
	"github.com/lni/dragonboat": {packages: []string{"internal/raft", "internal/raftlog", "internal/sim"}}, // sim's transport loses and delays messages
	"github.com/lni/vfs":        {packages: []string{"internal/raft", "internal/raftlog", "internal/node", "internal/recovery", "placement"}, tests: true},
	"go.uber.org/zap":           {packages: []string{"internal/etcdlog"}, tests: true},
	"go.etcd.io/etcd/server":    {tests: true, but: slices.Collect(maps.Keys(serverParts))},
	"go.etcd.io/bbolt":          {packages: []string{"internal/etcdsnapshot"}},
	"go.etcd.io/raft":           {},
	"github.com/hanwen/go-fuse": {packages: []string{"e2e/faults/syncfs"}},
	"github.com/jackc/pgx":      {packages: []string{"fence/fencepgx", "e2e/fencing", "e2e/fencing/writer"}},
	"github.com/stretchr":       {},
}

// serverParts are the packages of etcd's server module that stand on its client or
// its messages alone, and so bring none of the server into the binary.
var serverParts = map[string]bool{
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb":    true,
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb/gw": true,
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb":            true,
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb/gw":         true,
	"go.etcd.io/etcd/server/v3/lease/leasepb":                             true,
}

// listed is what go list tells of a package.
type listed struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

// name returns the package's path in the module, "." for its root.
func (p *listed) name() string { return inModule(p.ImportPath) }

func inModule(path string) string {
	if path == module {
		return "."
	}
	return strings.TrimPrefix(path, module+"/")
}

func listPackages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", module+"/...")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var packages []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
	if len(packages) < 2 {
		t.Fatalf("go list found %d packages", len(packages))
	}
	return packages
}

// importFaults returns what the imports of p break.
func importFaults(p *listed) []string {
	var faults []string
	row, ok := allowed[p.name()]
	if !ok {
		faults = append(faults, p.name()+" has no row in the table of allowed imports")
	}
	for _, path := range p.Imports {
		if own := inModule(path); ok && own != path && !slices.Contains(row, own) {
			faults = append(faults, fmt.Sprintf("%s must not import %s", p.name(), own))
		}
	}
	for prefix, rule := range confined {
		if slices.Contains(rule.packages, p.name()) {
			continue
		}
		imports := p.Imports
		if !rule.tests {
			imports = slices.Concat(imports, p.TestImports, p.XTestImports)
		}
		for _, path := range imports {
			if slices.Contains(rule.but, path) {
				continue
			}
			if path == prefix || strings.HasPrefix(path, prefix+"/") || strings.HasPrefix(path, prefix+".") {
				faults = append(faults, fmt.Sprintf("%s must not import %s", p.name(), path))
			}
		}
	}
	slices.Sort(faults)
	return slices.Compact(faults)
}

func TestImports(t *testing.T) {
	for _, p := range listPackages(t) {
		for _, fault := range importFaults(&p) {
			t.Error(fault)
		}
	}
}

// The binary must hold nothing of etcd's server but what serverParts names, and
// nothing of what an etcd server stands on but its database.
func TestBinaryHoldsNoEtcd(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", module+"/cmd/latchkey").Output()
	if err != nil {
		t.Fatal(err)
	}
	paths := strings.Fields(string(out))
	if !slices.Contains(paths, module+"/api") {
		t.Fatalf("go list -deps found %d packages without api", len(paths))
	}
	for _, path := range paths {
		for _, prefix := range []string{"go.etcd.io/etcd/server/", "go.etcd.io/raft/"} {
			if strings.HasPrefix(path, prefix) && !serverParts[path] {
				t.Errorf("the binary holds %s", path)
			}
		}
	}
}

// Every row must name packages that have rows, and the rows must have no cycle.
func TestImportTable(t *testing.T) {
	state := map[string]int{} // 1: on the way, 2: done
	var visit func(name string)
	visit = func(name string) {
		if state[name] == 1 {
			t.Errorf("the table lets %s import itself by a circle", name)
		}
		if state[name] != 0 {
			return
		}
		state[name] = 1
		for _, next := range allowed[name] {
			if _, ok := allowed[next]; !ok {
				t.Errorf("%s may import %s, which has no row", name, next)
			}
			visit(next)
		}
		state[name] = 2
	}
	for name := range allowed {
		visit(name)
	}
	for _, name := range []string{"mvcc", "lease", "internal/raft"} {
		for _, other := range []string{"mvcc", "lease", "internal/raft"} {
			if slices.Contains(allowed[name], other) {
				t.Errorf("the table lets %s import %s", name, other)
			}
		}
	}
}

func TestImportFaults(t *testing.T) {
	for _, tc := range []struct {
		p    listed
		want string
	}{
		{listed{ImportPath: module + "/internal/raft", Imports: []string{module + "/internal/keys", "github.com/lni/dragonboat/v4"}}, ""},
		{listed{ImportPath: module + "/shard", Imports: []string{module + "/mvcc", module + "/internal/raft"}}, ""},
		{
			listed{ImportPath: module + "/shard", Imports: []string{"github.com/lni/dragonboat/v4"}},
			"shard must not import github.com/lni/dragonboat/v4",
		},
		{listed{ImportPath: module + "/internal/raft", Imports: []string{module + "/mvcc"}}, "internal/raft must not import mvcc"},
		{listed{ImportPath: module + "/mvcc", Imports: []string{module + "/lease"}}, "mvcc must not import lease"},
		{listed{ImportPath: module + "/shard", Imports: []string{module + "/router"}}, "shard must not import router"},
		{listed{ImportPath: module + "/elsewhere"}, "elsewhere has no row in the table of allowed imports"},
		{
			listed{ImportPath: module + "/router", XTestImports: []string{"github.com/lni/dragonboat/v4/config"}},
			"router must not import github.com/lni/dragonboat/v4/config",
		},
		{listed{ImportPath: module + "/api", TestImports: []string{"go.uber.org/zap"}}, ""},
		{listed{ImportPath: module + "/api", Imports: []string{"go.uber.org/zap/zapcore"}}, "api must not import go.uber.org/zap/zapcore"},
		{listed{ImportPath: module + "/api", Imports: []string{"go.uber.org/zapper"}}, ""},
		{listed{ImportPath: module + "/api", Imports: []string{"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"}}, ""},
		{
			listed{ImportPath: module + "/api", Imports: []string{"go.etcd.io/etcd/server/v3/etcdserver"}},
			"api must not import go.etcd.io/etcd/server/v3/etcdserver",
		},
	} {
		if got := strings.Join(importFaults(&tc.p), "; "); got != tc.want {
			t.Errorf("%+v: %q, want %q", tc.p, got, tc.want)
		}
	}
}
