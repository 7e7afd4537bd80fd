package config

import (
	"cmp"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/server/v3/embed"
	"sigs.k8s.io/yaml"
)

// deciding are etcd's settings that decide who belongs together or what is kept, with a
// value that asks for it. Those that can't be done here stop the start.
var deciding = map[string]struct {
	value string
	stops bool
}{
	"name":                        {"n", false},
	"data-dir":                    {"d", false},
	"wal-dir":                     {"d", false}, // a warning: the log is kept, in the data directory
	"initial-cluster":             {"default=http://localhost:2380", false},
	"initial-cluster-state":       {"existing", false}, // stops where the directory holds no node
	"initial-cluster-token":       {"t", false},
	"initial-advertise-peer-urls": {"http://localhost:1", false},
	"discovery-srv":               {"example.com", true},
	"discovery-srv-name":          {"n", true},
	"discovery-endpoints":         {"http://example.com:2379", true},
	"discovery-token":             {"t", true},
	"force-new-cluster":           {"true", true},
	"unsafe-no-fsync":             {"true", true},
}

// others are etcd's settings that decide neither; those of discovery only tune it.
var others = strings.Fields(`
	advertise-client-urls auth-token auth-token-ttl auto-compaction-mode auto-compaction-retention auto-tls
	backend-batch-interval backend-batch-limit backend-bbolt-freelist-type bcrypt-cost
	bootstrap-defrag-threshold-megabytes cert-file cipher-suites client-cert-allowed-hostname client-cert-auth
	client-cert-file client-crl-file client-key-file compact-hash-check-time compaction-batch-limit
	compaction-sleep-interval config-file corrupt-check-time cors discovery-cacert discovery-cert
	discovery-dial-timeout discovery-fallback discovery-insecure-skip-tls-verify discovery-insecure-transport
	discovery-keepalive-time discovery-keepalive-timeout discovery-key discovery-password discovery-request-timeout
	discovery-user distributed-tracing-address distributed-tracing-instance-id distributed-tracing-sampling-rate
	distributed-tracing-service-name downgrade-check-time election-timeout enable-distributed-tracing
	enable-grpc-gateway enable-log-rotation enable-pprof feature-gates grpc-keepalive-interval
	grpc-keepalive-min-time grpc-keepalive-timeout heartbeat-interval host-whitelist
	initial-election-tick-advance key-file listen-client-http-urls listen-client-urls listen-metrics-urls
	listen-peer-urls log-format log-level log-outputs log-rotation-config-json logger max-concurrent-streams
	max-learners max-request-bytes max-snapshots max-txn-ops max-wals memory-mlock metrics peer-auto-tls
	peer-cert-allowed-cn peer-cert-allowed-hostname peer-cert-file peer-client-cert-auth peer-client-cert-file
	peer-client-key-file peer-crl-file peer-key-file peer-skip-client-san-verification peer-trusted-ca-file
	pre-vote quota-backend-bytes raft-read-timeout raft-write-timeout self-signed-cert-validity
	snapshot-catchup-entries snapshot-count socket-reuse-address socket-reuse-port strict-reconfig-check
	tls-max-version tls-min-version trusted-ca-file v2-deprecation version warning-apply-duration
	warning-unary-request-duration watch-progress-notify-interval`)

// Every flag of etcd is either one that decides, or known not to; one that a later etcd
// adds is in neither list. What decides and can't be done stops the start, however it is
// given.
func TestEveryFlagOfEtcdIsJudged(t *testing.T) {
	etcdFlags().VisitAll(func(f *flag.Flag) {
		row, decides := deciding[f.Name]
		if decides == slices.Contains(others, f.Name) {
			t.Errorf("--%s is in both lists, or in none", f.Name)
			return
		}
		if !decides {
			return
		}
		starts := []struct{ args, environ []string }{
			{args: []string{"--" + f.Name + "=" + row.value}},
			{environ: []string{envName("ETCD_", f.Name) + "=" + row.value}},
			{environ: []string{envName("LATCHKEY_", f.Name) + "=" + row.value}},
		}
		var value any = row.value
		if row.value == "true" {
			value = true
		}
		file, err := yaml.Marshal(map[string]any{f.Name: value})
		if err != nil {
			t.Fatal(err)
		}
		starts = append(starts, struct{ args, environ []string }{args: []string{"--config-file", writeFile(t, string(file))}})
		for _, s := range starts {
			_, err := Parse(s.args, s.environ)
			var usage *UsageError
			if stops := errors.As(err, &usage) && strings.Contains(err.Error(), "can't be done"); stops != row.stops || !stops && err != nil {
				t.Errorf("%q, %q: %v, want a refusal: %t", s.args, s.environ, err, row.stops)
			}
		}
	})
}

// Discovery can also be asked for in a section of the file, and in the ways of earlier
// etcds.
func TestDiscoveryInFiles(t *testing.T) {
	for text, stops := range map[string]bool{
		"discovery-config: {token: a}":                                        true,
		"discovery-config: {client: {endpoints: [http://a:1]}, token: a}":     true,
		"discovery-config: {endpoints: [a]}":                                  true,
		"discovery-config: {client: {endpoints: [], dial-timeout: 5}}":        false,
		"discovery-config: {}":                                                false,
		"discovery-config:":                                                   false,
		"discovery: https://discovery.etcd.io/1":                              true,
		"discovery:\ndiscovery-fallback: proxy\ndiscovery-proxy:\nproxy: off": false,
		"proxy: 'on'":              true,
		"proxy: readonly":          true,
		"discovery-srv: ''":        false,
		"force-new-cluster: false": false,
		"unsafe-no-fsync: false":   false,
	} {
		c, err := Parse([]string{"--config-file", writeFile(t, text)}, nil)
		if (err != nil) != stops || err == nil && len(c.Warnings) != 0 {
			t.Errorf("%s: %+v, %v, want a refusal: %t, else no warning", text, c, err, stops)
		}
	}
}

// fileKeys returns the keys that etcd reads from a file, with dots between levels.
func fileKeys(t *testing.T) []string {
	t.Helper()
	var keys []string
	c := reflect.TypeFor[embed.Config]()
	for i := range c.NumField() {
		key, _, _ := strings.Cut(c.Field(i).Tag.Get("json"), ",")
		switch key {
		case "", "-":
		case "grpc-additional-server-options": // code, which no file can hold
		case "socket-options":
			o := c.Field(i).Type
			for j := range o.NumField() {
				inner, _, _ := strings.Cut(o.Field(j).Tag.Get("json"), ",")
				keys = append(keys, key+"."+inner)
			}
		default:
			keys = append(keys, key)
		}
	}
	// These are read into fields that embed does not export.
	keys = append(keys, "listen-peer-urls", "listen-client-urls", "listen-client-http-urls", "initial-advertise-peer-urls",
		"advertise-client-urls", "cors", "host-whitelist", "feature-gates")
	for _, side := range []string{"client", "peer"} {
		for _, key := range strings.Fields(`cert-file key-file client-cert-file client-key-file client-cert-auth trusted-ca-file
			auto-tls allowed-cn allowed-hostname skip-client-san-verification`) {
			keys = append(keys, side+"-transport-security."+key)
		}
	}
	return keys
}

func TestKnowsEveryFileKeyOfEtcd(t *testing.T) {
	p := newParser(newConfig())
	for _, key := range fileKeys(t) {
		if p.keyOption(key) == nil {
			t.Errorf("etcd's key %s is unknown", key)
		}
	}
}

// sampleFile is what etcd.conf.yml.sample of etcd sets.
const sampleFile = `
name: 'default'
data-dir:
wal-dir:
snapshot-count: 10000
heartbeat-interval: 100
election-timeout: 1000
quota-backend-bytes: 0
listen-peer-urls: http://localhost:2380
listen-client-urls: http://localhost:2379
max-snapshots: 5
max-wals: 5
cors:
initial-advertise-peer-urls: http://localhost:2380
advertise-client-urls: http://localhost:2379
discovery:
discovery-fallback: 'proxy'
discovery-proxy:
discovery-srv:
initial-cluster:
initial-cluster-token: 'etcd-cluster'
initial-cluster-state: 'new'
strict-reconfig-check: false
enable-pprof: true
proxy: 'off'
proxy-failure-wait: 5000
proxy-refresh-interval: 30000
proxy-dial-timeout: 1000
proxy-write-timeout: 5000
proxy-read-timeout: 0
client-transport-security:
  cert-file:
  key-file:
  client-cert-auth: false
  trusted-ca-file:
  auto-tls: false
peer-transport-security:
  cert-file:
  key-file:
  client-cert-auth: false
  trusted-ca-file:
  auto-tls: false
self-signed-cert-validity: 1
log-level: debug
logger: zap
log-outputs: [stderr]
force-new-cluster: false
auto-compaction-mode: periodic
auto-compaction-retention: "1"
cipher-suites: [
  TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
  TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384
]
tls-min-version: 'TLS1.2'
tls-max-version: 'TLS1.3'
`

// etcd's sample file starts a node, and of each of its keys alone nothing is said but
// where it asks for what has no effect.
func TestSampleFileOfEtcd(t *testing.T) {
	told := func(text string) (settings []string) {
		t.Helper()
		c, err := Parse([]string{"--config-file", writeFile(t, text)}, nil)
		if err != nil {
			t.Errorf("%s\n%v", text, err)
			return nil
		}
		for _, w := range c.Warnings {
			settings = append(settings, w.Setting)
		}
		return settings
	}
	if diff := gocmp.Diff([]string(nil), told(sampleFile)); diff != "" {
		t.Errorf("warnings about etcd's sample file (-want +got):\n%s", diff)
	}
	var keys map[string]any
	if err := yaml.Unmarshal([]byte(sampleFile), &keys); err != nil {
		t.Fatal(err)
	}
	for key, value := range keys {
		alone := map[string]any{key: value}
		if key == "listen-client-urls" {
			alone["advertise-client-urls"] = keys["advertise-client-urls"]
		}
		text, err := yaml.Marshal(alone)
		if err != nil {
			t.Fatal(err)
		}
		if got := told(string(text)); len(got) != 0 {
			t.Errorf("%s: warnings about %q", key, got)
		}
	}
}

// kubeadm's command line of etcd starts a node without a warning; one that joins a
// cluster is refused only where its directory is empty.
func TestKubeadmsFlags(t *testing.T) {
	dir := t.TempDir()
	flags := map[string]string{
		"name":                           "cp-1",
		"feature-gates":                  "InitialCorruptCheck=true",
		"listen-client-urls":             "https://127.0.0.1:2379,https://10.0.0.1:2379",
		"advertise-client-urls":          "https://10.0.0.1:2379",
		"listen-peer-urls":               "https://10.0.0.1:2380",
		"initial-advertise-peer-urls":    "https://10.0.0.1:2380",
		"data-dir":                       filepath.Join(dir, "etcd"),
		"cert-file":                      "/etc/kubernetes/pki/etcd/server.crt",
		"key-file":                       "/etc/kubernetes/pki/etcd/server.key",
		"trusted-ca-file":                "/etc/kubernetes/pki/etcd/ca.crt",
		"client-cert-auth":               "true",
		"peer-cert-file":                 "/etc/kubernetes/pki/etcd/peer.crt",
		"peer-key-file":                  "/etc/kubernetes/pki/etcd/peer.key",
		"peer-trusted-ca-file":           "/etc/kubernetes/pki/etcd/ca.crt",
		"peer-client-cert-auth":          "true",
		"snapshot-count":                 "10000",
		"listen-metrics-urls":            "http://127.0.0.1:2381",
		"watch-progress-notify-interval": "5s",
		"initial-cluster":                "cp-1=https://10.0.0.1:2380",
	}
	var args []string
	for name, value := range flags {
		args = append(args, "--"+name+"="+value)
	}
	for _, state := range []string{"", "--initial-cluster-state=new", "--initial-cluster-state=existing"} {
		c, err := Parse(append(args, strings.Fields(state)...), nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Warnings) != 0 {
			t.Errorf("warnings about kubeadm's flags: %q", c.Warnings)
		}
		if !c.InitialCorruptCheck || c.ClusterState != ClusterState(cmp.Or(strings.TrimPrefix(state, "--initial-cluster-state="), "new")) {
			t.Errorf("kubeadm's flags were not heeded: %+v", c)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("parsing left %v, %v", left, err)
	}
}
