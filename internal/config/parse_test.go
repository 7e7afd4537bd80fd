package config

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/client/pkg/v3/types"
)

func parse(t *testing.T, environ []string, args ...string) *Config {
	t.Helper()
	c, err := Parse(args, environ)
	if err != nil {
		t.Fatalf("Parse(%q, %q): %v", args, environ, err)
	}
	return c
}

func TestDefaults(t *testing.T) {
	c := parse(t, nil)
	want := &Config{
		Name:                 "default",
		DataDir:              "default.latchkey",
		EtcdDataDir:          "default.etcd",
		ListenClientURLs:     mustURLs("http://localhost:2379"),
		ListenPeerURLs:       mustURLs("http://localhost:2380"),
		AdvertiseClientURLs:  mustURLs("http://localhost:2379"),
		AdvertisePeerURLs:    mustURLs("http://localhost:2380"),
		InitialCluster:       types.URLsMap{"default": mustURLs("http://localhost:2380")},
		PeerTLS:              TLS{MinVersion: tls.VersionTLS12, SelfSignedYears: 1},
		ClientTLS:            TLS{SelfSignedYears: 1, MinVersion: tls.VersionTLS12},
		EnableGateway:        true,
		HostWhitelist:        []string{"*"},
		ClusterState:         NewCluster,
		ClusterToken:         "etcd-cluster",
		HeartbeatInterval:    100 * time.Millisecond,
		ElectionTimeout:      time.Second,
		MaxTxnOps:            128,
		MaxRequestBytes:      1572864,
		MaxConcurrentStreams: 4294967295,
		PingMinTime:          5 * time.Second,
		PingInterval:         2 * time.Hour,
		PingTimeout:          20 * time.Second,
		CompactionMode:       PeriodicCompaction,
		StrictReconfigCheck:  true,
		WritesOverShards:     true,
		CompactHashCheckTime: time.Minute,
		AuthToken:            "simple",
		AuthTokenTTL:         5 * time.Minute,
		BcryptCost:           10,
		Metrics:              BasicMetrics,
		LogLevel:             slog.LevelInfo,
		LogFormat:            ConsoleLog,
		LogOutputs:           []string{"default"},
		compactionRetention:  "0",
	}
	if diff := cmp.Diff(want, c, cmp.AllowUnexported(Config{})); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

func TestFlagForms(t *testing.T) {
	for _, args := range [][]string{
		{"--name=x", "--enable-pprof"},
		{"-name", "x", "-enable-pprof=true"},
		{"--name", "y", "--name", "x", "--enable-pprof=1"},
		{"-name=x", "--enable-pprof=false", "-enable-pprof"},
	} {
		c := parse(t, nil, args...)
		if c.Name != "x" || !c.EnablePprof || c.DataDir != "x.latchkey" || len(c.Warnings) != 0 {
			t.Errorf("%q: %+v", args, c)
		}
	}
}

func TestPrecedence(t *testing.T) {
	env := []string{
		"ETCD_NAME=etcd", "LATCHKEY_NAME=latchkey", "ETCD_DATA_DIR=etcd-dir", "LATCHKEY_MAX_TXN_OPS=", "ETCD_MAX_TXN_OPS=5",
		"PATH=/bin", "NAME=stranger", "ETCD_UNHEARD_OF=1", "LATCHKEY_VERSION=2", "ETCD_PRE_VOTE=true", "LATCHKEY_PRE_VOTE=false",
	}
	c := parse(t, env)
	if c.Name != "latchkey" || c.DataDir != "etcd-dir" || c.MaxTxnOps != 5 {
		t.Errorf("from the environment: name %q, dir %q, ops %d", c.Name, c.DataDir, c.MaxTxnOps)
	}
	var settings []string
	for _, w := range c.Warnings {
		settings = append(settings, w.Setting)
	}
	if diff := cmp.Diff([]string{"LATCHKEY_PRE_VOTE", "LATCHKEY_VERSION", "ETCD_UNHEARD_OF"}, settings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if c := parse(t, env, "--name", "flag"); c.Name != "flag" || c.DataDir != "etcd-dir" {
		t.Errorf("with a flag: name %q, dir %q", c.Name, c.DataDir)
	}
}

func TestValues(t *testing.T) {
	c := parse(t, nil,
		"--listen-client-urls=http://10.0.0.1:2379,http://[::]:79,unix:///run/x.sock", "--advertise-client-urls=http://db.example:2379",
		"--listen-peer-urls=http://0.0.0.0:80", "--initial-advertise-peer-urls=http://a:80,http://b:80,http://a:80",
		"--name=n1", "--initial-cluster=n1=http://b:80,n1=http://a:80", "--initial-cluster-state=existing", "--initial-cluster-token=t",
		"--heartbeat-interval=10", "--election-timeout=50", "--quota-backend-bytes=-1", "--max-request-bytes=0x400",
		"--grpc-keepalive-interval=1m30s", "--watch-progress-notify-interval=100ms", "--metrics=extensive", "--log-level=debug",
		"--log-format=json", "--log-outputs=stdout,/tmp/x,stdout", "--log-shards=3", "--max-concurrent-streams=7", `--initial-splits=/b,/a,\xff\x2c\\`,
		"--auth-token=jwt,sign-method=HS256,priv-key=k", "--auth-token-ttl=7", "--bcrypt-cost=4")
	if c.AuthToken != "jwt,sign-method=HS256,priv-key=k" || c.AuthTokenTTL != 7*time.Second || c.BcryptCost != 4 {
		t.Errorf("tokens %q for %v, hashes at %d", c.AuthToken, c.AuthTokenTTL, c.BcryptCost)
	}
	if got := c.ListenClientURLs.String(); got != "http://10.0.0.1:2379,http://[::]:79,unix:///run/x.sock" {
		t.Errorf("client URLs %s", got)
	}
	if got := c.InitialCluster.String(); got != "n1=http://a:80,n1=http://b:80" {
		t.Errorf("cluster %s", got)
	}
	if c.ClusterState != ExistingCluster || c.ClusterToken != "t" || c.HeartbeatInterval != 10*time.Millisecond ||
		c.ElectionTimeout != 50*time.Millisecond || c.QuotaBytes != -1 || c.MaxRequestBytes != 1024 ||
		c.PingInterval != 90*time.Second || c.ProgressInterval != 100*time.Millisecond || c.Metrics != ExtensiveMetrics ||
		!slices.EqualFunc(c.InitialSplits, []string{"/a", "/b", "\xff,\\"}, func(b []byte, s string) bool { return string(b) == s }) ||
		c.LogLevel != slog.LevelDebug || c.LogFormat != JSONLog || c.LogShards != 3 || c.MaxConcurrentStreams != 7 {
		t.Errorf("values: %+v", c)
	}
	if diff := cmp.Diff([]string{"stdout", "/tmp/x"}, c.LogOutputs); diff != "" {
		t.Errorf("log outputs (-want +got):\n%s", diff)
	}
	if len(c.Warnings) != 0 {
		t.Errorf("warnings %q", c.Warnings)
	}
}

func TestCompaction(t *testing.T) {
	for _, tc := range []struct {
		mode, retention string
		period          time.Duration
		revisions       int64
	}{
		{"periodic", "0", 0, 0},
		{"periodic", "5", 5 * time.Hour, 0},
		{"periodic", "5m", 5 * time.Minute, 0},
		{"periodic", "1h30m", 90 * time.Minute, 0},
		{"revision", "0", 0, 0},
		{"revision", "1000", 0, 1000},
	} {
		c := parse(t, nil, "--auto-compaction-mode", tc.mode, "--auto-compaction-retention", tc.retention)
		if c.CompactionPeriod != tc.period || c.CompactionRevisions != tc.revisions || string(c.CompactionMode) != tc.mode {
			t.Errorf("%s %s: %v, %d", tc.mode, tc.retention, c.CompactionPeriod, c.CompactionRevisions)
		}
	}
}

func TestUsageErrors(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--nosuch"}, "unknown flag --nosuch"},
		{[]string{"-nosuch=1"}, "unknown flag -nosuch"},
		{[]string{"--discovery-config=1"}, "unknown flag --discovery-config; did you mean"},
		{[]string{"serve"}, `unexpected argument "serve"`},
		{[]string{"--"}, `unexpected argument "--"`},
		{[]string{"-"}, `unexpected argument "-"`},
		{[]string{""}, `unexpected argument ""`},
		{[]string{"--name"}, "--name needs a value"},
		{[]string{"--name="}, "--name is empty"},
		{[]string{"--enable-pprof=maybe"}, `invalid value "maybe" for --enable-pprof: must be true or false`},
		{[]string{"--max-txn-ops=0"}, "whole number from 1"},
		{[]string{"--max-txn-ops=x"}, "whole number from 1"},
		{[]string{"--max-request-bytes=3000000000"}, "whole number from 1"},
		{[]string{"--max-concurrent-streams=4294967296"}, "whole number from 0 to 4294967295"},
		{[]string{"--max-concurrent-streams=-1"}, "whole number from 0"},
		{[]string{"--quota-backend-bytes=9223372036854775808"}, "whole number"},
		{[]string{"--quota-backend-bytes=1GiB"}, "whole number"},
		{[]string{"--max-wals=-1"}, "for --max-wals: must be a whole number"},
		{[]string{"--grpc-keepalive-min-time=5"}, "must be a duration"},
		{[]string{"--grpc-keepalive-min-time=-5s"}, "must be a duration"},
		{[]string{"--heartbeat-interval=0"}, "positive whole number of milliseconds"},
		{[]string{"--election-timeout=1s"}, "positive whole number of milliseconds"},
		{[]string{"--election-timeout=499"}, "--election-timeout of 499ms must be at least 5 times --heartbeat-interval of 100ms"},
		{[]string{"--election-timeout=50001"}, "must be at most 50000ms"},
		{[]string{"--listen-client-urls=http://127.0.0.1:1"}, "--advertise-client-urls is required"},
		{[]string{"--listen-client-urls=127.0.0.1:1"}, "for --listen-client-urls: must be URLs such as"},
		{[]string{"--listen-peer-urls=http://localhost"}, `does not have the form "host:port"`},
		{[]string{"--listen-peer-urls=http://localhost:http"}, "invalid value"},
		{[]string{"--listen-peer-urls=http://127.0.0.1:70000"}, "the port must be a number up to 65535"},
		{[]string{"--listen-peer-urls=http://db.example:1"}, "must be an IP address or localhost"},
		{[]string{"--listen-peer-urls=https://127.0.0.1:1"}, "--peer-cert-file and --peer-key-file, or --peer-auto-tls, are required"},
		{[]string{"--listen-peer-urls=https://127.0.0.1:1", "--peer-cert-file=c"}, "--peer-cert-file and --peer-key-file must be given together"},
		{[]string{"--listen-peer-urls=https://127.0.0.1:1", "--peer-auto-tls", "--peer-client-key-file=c"}, "must be given together"},
		{[]string{"--peer-cert-allowed-cn=a", "--peer-cert-allowed-hostname=b"}, "exclude each other"},
		{[]string{"--listen-client-urls=https://127.0.0.1:1", "--advertise-client-urls=https://a:1"}, "--cert-file and --key-file, or --auto-tls, are required"},
		{[]string{"--listen-client-urls=unixs://a", "--advertise-client-urls=unixs://a", "--key-file=a"}, "must be given together"},
		{[]string{"--tls-min-version=TLS1.3", "--tls-max-version=TLS1.2"}, "--tls-min-version (TLS1.3) is greater than --tls-max-version (TLS1.2)"},
		{[]string{"--tls-min-version=TLS1.3", "--cipher-suites=TLS_AES_128_GCM_SHA256"}, "nothing but TLS1.3"},
		{[]string{"--cipher-suites=TLS_NONE"}, `unexpected TLS cipher suite "TLS_NONE"`},
		{[]string{"--cors=nowhere"}, "must be URLs"},
		{[]string{"--feature-gates=CompactHashCheck"}, "must be name=true or name=false"},
		{[]string{"--feature-gates=CompactHashCheck=on"}, "must be name=true or name=false"},
		{[]string{"--feature-gates=CompactHashCheck=true,Other=true"}, `there is no feature "Other"`},
		{[]string{"--listen-peer-urls=ftp://127.0.0.1:1"}, "scheme must be http"},
		{[]string{"--listen-peer-urls=http://127.0.0.1:1/x"}, "must not contain a path"},
		{[]string{"--listen-peer-urls=unix://"}, "path of the socket is missing"},
		{[]string{"--listen-peer-urls="}, "--listen-peer-urls is empty"},
		{[]string{"--listen-client-http-urls=http://localhost:2379"}, "--listen-client-urls and --listen-client-http-urls both have http://localhost:2379"},
		{[]string{"--listen-client-http-urls=http://localhost:1", "--listen-metrics-urls=http://localhost:1"}, "--listen-client-http-urls and --listen-metrics-urls both have"},
		{[]string{"--listen-metrics-urls=http://db.example:1"}, "must be an IP address or localhost"},
		{[]string{"--listen-metrics-urls=https://127.0.0.1:1"}, "are required for --listen-metrics-urls https://127.0.0.1:1"},
		{[]string{"--listen-client-http-urls=https://127.0.0.1:1"}, "are required for --listen-client-http-urls https://127.0.0.1:1"},
		{[]string{"--advertise-client-urls="}, "--advertise-client-urls is empty"},
		{[]string{"--advertise-client-urls=http://:1"}, "the host is missing"},
		{[]string{"--initial-cluster=b=http://localhost:2380"}, `does not list this node, "default"`},
		{[]string{"--initial-cluster=default=http://localhost:1"}, "but --initial-advertise-peer-urls is http://localhost:2380"},
		{[]string{"--initial-cluster=default=nonsense"}, "for --initial-cluster"},
		{[]string{"--initial-cluster=default=http://localhost:2380,b=http://localhost:2380"}, "has http://localhost:2380 for two nodes"},
		{[]string{"--initial-cluster-state=old"}, `must be "new" or "existing"`},
		{[]string{"--initial-splits=a,,b"}, "must not be empty"},
		{[]string{`--initial-splits=a\n`}, "a backslash must be followed"},
		{[]string{`--initial-splits=\xg0`}, "no byte in hexadecimal"},
		{[]string{`--initial-splits=a,b,\x61`}, "\"a\" twice"},
		{[]string{"--auto-compaction-mode=never"}, `must be "periodic" or "revision"`},
		{[]string{"--auto-compaction-retention=5x"}, "number of hours or a duration"},
		{[]string{"--auto-compaction-retention=-5m"}, "number of hours or a duration"},
		{[]string{"--auto-compaction-retention=2562048"}, "number of hours or a duration"},
		{[]string{"--auto-compaction-mode=revision", "--auto-compaction-retention=5m"}, "number of revisions"},
		{[]string{"--auto-compaction-mode=revision", "--auto-compaction-retention=-5"}, "number of revisions"},
		{[]string{"--metrics=all"}, `must be "basic" or "extensive"`},
		{[]string{"--log-level=loud"}, "must be debug, info"},
		{[]string{"--log-format=xml"}, `must be "json" or "console"`},
		{[]string{"--log-outputs=stdout,"}, "words separated by commas"},
		{[]string{"--log-shards=257"}, "whole number from 0 to 256"},
		{[]string{"--discovery-fallback=none"}, `must be "exit" or "proxy"`},
		{[]string{"--discovery-srv=example.com", "--name=b"}, "--discovery-srv can't be done: this version finds no nodes"},
		{[]string{"--discovery-token=a", "--discovery-endpoints=b"}, "can't be done"},
		{[]string{"--discovery=https://discovery.example/1"}, "--discovery can't be done"},
		{[]string{"--force-new-cluster"}, "--force-new-cluster can't be done"},
		{[]string{"--tls-min-version=TLS1.1"}, `must be "TLS1.2" or "TLS1.3"`},
		{[]string{"--config-file=/nonexistent/x"}, "read configuration file: open /nonexistent/x"},
	} {
		c, err := Parse(tc.args, nil)
		var usage *UsageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Parse(%q) = %v, %v, want a usage error with %q", tc.args, c, err, tc.want)
		}
	}
	_, err := Parse(nil, []string{"ETCD_MAX_TXN_OPS=many"})
	if err == nil || !strings.Contains(err.Error(), `invalid value "many" for ETCD_MAX_TXN_OPS`) {
		t.Errorf("a bad variable: %v", err)
	}
}

func TestHelpAndVersion(t *testing.T) {
	for arg, want := range map[string]error{
		"-h": ErrHelp, "--h": ErrHelp, "-help": ErrHelp, "--help": ErrHelp, "-version": ErrVersion, "--version=true": ErrVersion, "help": ErrHelp, "version": ErrVersion,
	} {
		if _, err := Parse([]string{arg}, []string{"ETCD_MAX_TXN_OPS=many"}); !errors.Is(err, want) {
			t.Errorf("Parse(%s): %v, want %v", arg, err, want)
		}
	}
	if c := parse(t, nil, "--version=false"); len(c.Warnings) != 0 {
		t.Errorf("warnings %q", c.Warnings)
	}
	var b strings.Builder
	if err := WriteVersion(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(b.String(), "latchkey "+Version+"\netcd API 3.7.3\ngo1.") || !strings.Contains(b.String(), "\ncommit ") {
		t.Errorf("version:\n%s", b.String())
	}
}

func TestAdvice(t *testing.T) {
	c := parse(t, nil, "--max-request-bytes=10485761", "--quota-backend-bytes=8589934593")
	if len(c.Warnings) != 2 {
		t.Errorf("warnings %q, want one a setting", c.Warnings)
	}
	for _, cost := range []string{"0", "3", "32"} {
		if c := parse(t, nil, "--bcrypt-cost="+cost); len(c.Warnings) != 1 || c.BcryptCost != 10 {
			t.Errorf("hashes at %d for %s, warnings %q", c.BcryptCost, cost, c.Warnings)
		}
	}
	c = parse(t, nil, "--max-request-bytes=10485760", "--quota-backend-bytes=8589934592")
	if len(c.Warnings) != 0 {
		t.Errorf("warnings %q", c.Warnings)
	}
}

func TestFile(t *testing.T) {
	path := writeFile(t, `# a node
name: 'n1'
data-dir:
listen-client-urls: http://127.0.0.1:3379,http://[::1]:3379
advertise-client-urls: http://127.0.0.1:3379
heartbeat-interval: 200
election-timeout: 2000
quota-backend-bytes: 8589934591
watch-progress-notify-interval: 60000000000
grpc-keepalive-timeout: 7s
socket-options:
  reuse-port: true
log-outputs: [stderr, stdout]
initial-cluster: ''
client-transport-security:
  cert-file: a.pem
  client-cert-auth: false
discovery-config:
  client:
    endpoints: []
    dial-timeout: 5000000000
  token: ''
discovery-fallback: proxy
experimental-thing: true
`)
	c := parse(t, []string{"ETCD_CONFIG_FILE=/nonexistent", "LATCHKEY_CONFIG_FILE=" + path, "LATCHKEY_NAME=ignored", "ETCD_OTHER=1"},
		"--max-txn-ops=3", "--pre-vote")
	if c.Name != "n1" || c.DataDir != "n1.latchkey" || c.MaxTxnOps != 128 || c.HeartbeatInterval != 200*time.Millisecond ||
		c.QuotaBytes != 8589934591 || c.ProgressInterval != time.Minute || c.PingTimeout != 7*time.Second || !c.ReusePort ||
		c.ListenClientURLs.String() != "http://127.0.0.1:3379,http://[::1]:3379" || len(c.LogOutputs) != 2 {
		t.Errorf("from the file: %+v", c)
	}
	var settings []string
	for _, w := range c.Warnings {
		settings = append(settings, w.Setting)
	}
	want := []string{
		"client-transport-security.cert-file", "experimental-thing", "--config-file",
	}
	if diff := cmp.Diff(want, settings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if c := parse(t, nil, "--config-file", writeFile(t, "")); c.Name != "default" || len(c.Warnings) != 0 {
		t.Errorf("from an empty file: %+v", c)
	}
}

func TestFileErrors(t *testing.T) {
	for text, want := range map[string]string{
		"name: [":                           "parse configuration file",
		"- a\n- b":                          "not a map of settings",
		"max-txn-ops: many":                 `invalid value "many" for max-txn-ops`,
		"max-txn-ops: 1.5":                  `invalid value "1.5" for max-txn-ops`,
		"log-outputs: [1]":                  "element 0 of the list is not a string",
		"name: {a: b}\nmax-txn-ops: {}":     `invalid value "{}" for max-txn-ops`,
		"election-timeout: 100":             "at least 5 times",
		"listen-client-urls: http://[::]:1": "--advertise-client-urls is required",
	} {
		_, err := Parse([]string{"--config-file", writeFile(t, text)}, nil)
		var usage *UsageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("file %q: %v, want a usage error with %q", text, err, want)
		}
	}
}

func TestOpenLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	c := parse(t, nil, "--log-outputs=default,stdout,"+path, "--log-format=json", "--log-level=info")
	var stdout, stderr bytes.Buffer
	log, closer, err := c.OpenLog(&stdout, &stderr)
	if err != nil {
		t.Fatal(err)
	}
	log.Debug("dropped")
	log.Info("kept", slog.Int("n", 1))
	if err := closer.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"stdout": stdout.Bytes(), "stderr": stderr.Bytes(), "file": file} {
		var line struct {
			Msg string `json:"msg"`
			N   int    `json:"n"`
		}
		if err := json.Unmarshal(b, &line); err != nil || line.Msg != "kept" || line.N != 1 {
			t.Errorf("%s: %q: %v", name, b, err)
		}
	}

	c = parse(t, nil, "--log-level=warn", "--log-outputs="+path)
	if log, closer, err = c.OpenLog(io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	log.Info("dropped")
	log.Warn("appended")
	if err := closer.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if added := strings.TrimPrefix(string(again), string(file)); !strings.Contains(added, "level=WARN msg=appended\n") || strings.Count(added, "\n") != 1 {
		t.Errorf("added to the file: %q", added)
	}

	c = parse(t, nil, "--log-outputs="+path+",/nonexistent/log")
	if _, _, err := c.OpenLog(io.Discard, io.Discard); err == nil {
		t.Error("a log output that can't be opened was accepted")
	}
}
