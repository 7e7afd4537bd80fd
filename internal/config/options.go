package config

import (
	"encoding/json"
	"math"
	"slices"
	"time"
)

// option is one setting.
type option struct {
	// name is the flag, and in upper case the environment variable.
	name  string
	value value
	// help says what the setting does, without a full stop.
	help string
	// idle says why the setting does nothing; empty for one that does something.
	// A value that asks for something earns its maker one warning.
	idle string
	// absent says why a node can't start with a value that asks for something: the
	// setting decides who belongs together or what is kept, and nothing here can do that.
	absent string
	// asks reports whether a value, in the option's own form, asks for something; nil for
	// whether it is not the default.
	asks func(string) bool
	// normal is the value's text before anything was set.
	normal string
	// key is the setting's key in a configuration file, with dots between levels.
	// Empty: the name. noKey: files can't make the setting.
	key string
	// fileOnly settings are neither flags nor environment variables, flagOnly ones
	// nothing but flags.
	fileOnly, flagOnly bool
}

const (
	noKey = "-"

	// obsolete is the title of the group that the help text leaves out.
	obsolete = "Obsolete"
)

// group is a chapter of the help text.
type group struct {
	title   string
	options []option
}

// Reasons of settings that do nothing.
const (
	idleBackend   = "the store of etcd that it tunes is not used here"
	idleLog       = "the Raft log lies in the data directory and is trimmed without it"
	idleDials     = "the gateway needs no certificate to call its own server"
	idleDiscovery = "it is about discovery, by which this version finds no nodes"
	idleTracing   = "this version sends no traces"
	idleLearners  = "a cluster has one learner at a time"
	idleDeadPeers = "connections between nodes are given up by --election-timeout"
	idleSlow      = "slow requests are not logged"
	idleAlways    = "it is always so here"
	idleRotation  = "log files are left to the tools of the system"
	idleGone      = "it is obsolete and has long been ignored by etcd"
	idleProxy     = "it is about etcd's old proxy"
)

// Reasons of settings that stop the start.
const (
	absentDiscovery = "this version finds no nodes by discovery, and nodes that each start alone would be clusters of their own; name all of them in --initial-cluster"
	absentProxy     = "this program is no proxy; clients reach any node by themselves"
	absentForce     = "this version can't make a cluster out of one of its nodes; start a majority of the nodes with their data directories"
	absentNoFsync   = "what is acknowledged is always synced here, and that can't be switched off; leave the setting out"
)

// never is option.asks of a setting that asks for nothing by itself.
func never(string) bool { return false }

// asksProxy reports whether etcd's old proxy is asked for; YAML takes a bare off for false.
func asksProxy(mode string) bool { return !slices.Contains([]string{"", "off", "false"}, mode) }

// asksDiscovery reports whether the section of a file names a place to ask.
func asksDiscovery(section string) bool {
	var d struct {
		Token     string   `json:"token"`
		Endpoints []string `json:"endpoints"`
		Client    struct {
			Endpoints []string `json:"endpoints"`
		} `json:"client"`
	}
	err := json.Unmarshal([]byte(section), &d)
	return section != "" && (err != nil || d.Token != "" || len(d.Endpoints)+len(d.Client.Endpoints) > 0)
}

// groups returns the table of settings, bound to c.
func (c *Config) groups() []group {
	return []group{
		{"General", c.generalOptions()},
		{"Member", c.memberOptions()},
		{"Limits", c.limitOptions()},
		{"Clustering", c.clusterOptions()},
		{"Compaction", c.compactionOptions()},
		{"Security", c.securityOptions()},
		{"Monitoring", c.monitoringOptions()},
		{"Corruption", c.corruptionOptions()},
		{"Logging", c.loggingOptions()},
		{"Tuning", tuningOptions()},
		{"Unsafe", unsafeOptions()},
		{obsolete, obsoleteOptions()},
	}
}

func (c *Config) generalOptions() []option {
	return []option{
		{name: "config-file", value: text(&c.configFile), key: noKey, help: "YAML file with the settings, under etcd's keys; flags and environment are then ignored"},
		{name: "version", value: toggle(&c.showVersion), key: noKey, flagOnly: true, help: "Print the version and exit"},
		{name: "help", value: toggle(&c.showHelp), key: noKey, flagOnly: true, help: "Print this help and exit"},
	}
}

func (c *Config) memberOptions() []option {
	return []option{
		{name: "name", value: text(&c.Name), help: "Name of this node, unique in the cluster"},
		{name: "data-dir", value: text(&c.DataDir), help: "Directory that the node keeps everything in (default: <name>.latchkey)"},
		{name: "listen-client-urls", value: urls(&c.ListenClientURLs), help: "URLs to serve clients on, gRPC and HTTP; gRPC alone where --listen-client-http-urls is given"},
		{name: "listen-client-http-urls", value: urls(&c.ListenHTTPURLs), help: "URLs to serve clients on by HTTP, without gRPC"},
		{name: "listen-peer-urls", value: urls(&c.ListenPeerURLs), help: "URLs to serve other nodes on"},
		{name: "heartbeat-interval", value: milliseconds(&c.HeartbeatInterval), help: "Milliseconds between two heartbeats of a leader"},
		{name: "election-timeout", value: milliseconds(&c.ElectionTimeout), help: "Milliseconds without heartbeats after which an election begins; at least five heartbeat intervals, at most 50000"},
		{name: "log-shards", value: number(&c.LogShards, 0, 256), help: "workers that write the Raft log; fixed at the first start (0: by the number of cores)"},
		{name: "socket-reuse-port", value: toggle(&c.ReusePort), key: "socket-options.reuse-port", help: "Set SO_REUSEPORT on listeners"},
		{name: "socket-reuse-address", value: toggle(&c.ReuseAddress), key: "socket-options.reuse-address", help: "Set SO_REUSEADDR on listeners"},
		{name: "wal-dir", value: unreadText(""), idle: idleLog},
		{name: "snapshot-count", value: unreadNumber[uint64](10000, math.MaxUint64), idle: idleLog},
		{name: "snapshot-catchup-entries", value: unreadNumber[uint64](5000, math.MaxUint64), idle: idleLog},
		{name: "max-snapshots", value: unreadNumber[uint](5, math.MaxUint), idle: idleLog},
		{name: "max-wals", value: unreadNumber[uint](5, math.MaxUint), idle: idleLog},
		{name: "initial-election-tick-advance", value: unreadToggle(true), idle: "a node's first election is not put forward here"},
		{name: "enable-grpc-gateway", value: toggle(&c.EnableGateway), help: "Serve the JSON APIs under /v3 and /api/v1"},
	}
}

func (c *Config) limitOptions() []option {
	return []option{
		{name: "quota-backend-bytes", value: number(&c.QuotaBytes, math.MinInt64, math.MaxInt64), help: "Bytes of retained versions beyond which writes are refused (0: 2 GiB, negative: no bound)"},
		{name: "max-txn-ops", value: number(&c.MaxTxnOps, 1, math.MaxInt32), help: "Most operations in a transaction"},
		{name: "max-request-bytes", value: number(&c.MaxRequestBytes, 1, maxRequestBytes), help: "Most bytes in a request"},
		{name: "max-concurrent-streams", value: number(&c.MaxConcurrentStreams, 0, math.MaxUint32), help: "Most calls of one connection at a time"},
		{name: "grpc-keepalive-min-time", value: duration(&c.PingMinTime), help: "Shortest time between two pings of a client; one that pings more often is disconnected"},
		{name: "grpc-keepalive-interval", value: duration(&c.PingInterval), help: "Silence after which the server pings a client"},
		{name: "grpc-keepalive-timeout", value: duration(&c.PingTimeout), help: "Wait for the answer to such a ping before the connection is closed"},
		{name: "watch-progress-notify-interval", value: duration(&c.ProgressInterval), help: "Time between the progress notices of an idle watch (0s: 10 minutes)"},
	}
}

func (c *Config) clusterOptions() []option {
	return []option{
		{name: "advertise-client-urls", value: urls(&c.AdvertiseClientURLs), help: "Client URLs of this node that members lists show; required with --listen-client-urls"},
		{name: "initial-advertise-peer-urls", value: urls(&c.AdvertisePeerURLs), help: "Peer URLs of this node that other nodes dial"},
		{name: "initial-cluster", value: text(&c.initialCluster), help: "Nodes of a new cluster, name=peer-URL,...; the same on all of them, and ignored once there is one (default: this node alone)"},
		{name: "initial-cluster-state", value: choice(&c.ClusterState, NewCluster, ExistingCluster), help: "Whether a node without data makes a new cluster; with existing it becomes a member of the cluster that the others of --initial-cluster have, which a member was added to for it"},
		{name: "initial-cluster-token", value: text(&c.ClusterToken), help: "Text that sets clusters of the same names and URLs apart"},
		{name: "initial-splits", value: text(&c.initialSplits), help: "Keys at which a new cluster divides its keyspace among shards, separated by commas, with \\xNN for any byte; fixed at the first start"},
		{name: "strict-reconfig-check", value: toggle(&c.StrictReconfigCheck), help: "Refuse a change of the members that too few started and reachable members would be left for"},
		{name: "pre-vote", value: unreadToggle(true), idle: idleAlways},
		{name: "max-learners", value: unreadNumber(1, math.MaxInt), idle: idleLearners},
		{name: "discovery-config", fileOnly: true, value: unreadText(""), absent: absentDiscovery, asks: asksDiscovery},
		{name: "discovery-srv", value: unreadText(""), absent: absentDiscovery},
		{name: "discovery-srv-name", value: unreadText(""), absent: absentDiscovery},
		{name: "discovery-fallback", value: unreadChoice("exit", "proxy"), idle: idleDiscovery, asks: never},
		{name: "discovery-endpoints", value: unreadText(""), absent: absentDiscovery},
		{name: "discovery-token", value: unreadText(""), absent: absentDiscovery},
		{name: "discovery-dial-timeout", value: unreadDuration(2 * time.Second), key: noKey, idle: idleDiscovery},
		{name: "discovery-request-timeout", value: unreadDuration(5 * time.Second), key: noKey, idle: idleDiscovery},
		{name: "discovery-keepalive-time", value: unreadDuration(2 * time.Second), key: noKey, idle: idleDiscovery},
		{name: "discovery-keepalive-timeout", value: unreadDuration(6 * time.Second), key: noKey, idle: idleDiscovery},
		{name: "discovery-insecure-transport", value: unreadToggle(true), key: noKey, idle: idleDiscovery},
		{name: "discovery-insecure-skip-tls-verify", value: unreadToggle(false), key: noKey, idle: idleDiscovery},
		{name: "discovery-cert", value: unreadText(""), key: noKey, idle: idleDiscovery},
		{name: "discovery-key", value: unreadText(""), key: noKey, idle: idleDiscovery},
		{name: "discovery-cacert", value: unreadText(""), key: noKey, idle: idleDiscovery},
		{name: "discovery-user", value: unreadText(""), key: noKey, idle: idleDiscovery},
		{name: "discovery-password", value: unreadText(""), key: noKey, idle: idleDiscovery},
	}
}

func (c *Config) compactionOptions() []option {
	return []option{
		{name: "auto-compaction-mode", value: choice(&c.CompactionMode, PeriodicCompaction, RevisionCompaction), help: "What automatic compaction keeps: versions of a period, or a number of revisions"},
		{name: "auto-compaction-retention", value: text(&c.compactionRetention), help: "How much it keeps: hours or a duration such as 30m, or revisions (0: no automatic compaction)"},
		{name: "compaction-batch-limit", value: unreadNumber(0, math.MaxInt), idle: idleBackend},
		{name: "compaction-sleep-interval", value: unreadDuration(0), idle: idleBackend},
	}
}

func (c *Config) securityOptions() []option {
	const client = "client-transport-security."
	return append(append(c.tlsOptions(), c.peerTLSOptions()...), []option{
		{name: "client-cert-file", value: unreadText(""), key: client + "client-cert-file", idle: idleDials},
		{name: "client-key-file", value: unreadText(""), key: client + "client-key-file", idle: idleDials},
		{name: "skip-client-san-verification", fileOnly: true, value: unreadToggle(false), key: client + "skip-client-san-verification", idle: "names in certificates are compared with no address here"},
		{name: "cors", value: origins(&c.CORS), help: "Origins whose pages may use the JSON API, URLs separated by commas (* or an empty list: all)"},
		{name: "host-whitelist", value: words(&c.HostWhitelist), help: "Hosts that HTTP requests without TLS may ask for, separated by commas (* or none: all)"},
		{name: "auth-token", value: text(&c.AuthToken), help: "Tokens of users: simple, or jwt,sign-method=<RS256, ES256, HS256...>,pub-key=<file>,priv-key=<file>,ttl=<duration>"},
		{name: "auth-token-ttl", value: seconds(&c.AuthTokenTTL), help: "Seconds that a simple token lasts since its last use (0: 300)"},
		{name: "bcrypt-cost", value: number(&c.BcryptCost, 0, math.MaxInt), help: "Cost of hashing a password, from 4 to 31"},
	}...)
}

func (c *Config) monitoringOptions() []option {
	return []option{
		{name: "enable-pprof", value: toggle(&c.EnablePprof), help: "Serve profiles under /debug/pprof/ of the client URLs"},
		{name: "metrics", value: choice(&c.Metrics, BasicMetrics, ExtensiveMetrics), help: "Detail of the metrics; extensive adds histograms of calls"},
		{name: "listen-metrics-urls", value: urls(&c.ListenMetricsURLs), help: "URLs to serve metrics and health checks on, beside those of HTTP"},
		{name: "warning-unary-request-duration", value: unreadDuration(300 * time.Millisecond), idle: idleSlow},
		{name: "warning-apply-duration", value: unreadDuration(100 * time.Millisecond), idle: idleSlow},
		{name: "enable-distributed-tracing", value: unreadToggle(false), idle: idleTracing},
		{name: "distributed-tracing-address", value: unreadText("localhost:4317"), idle: idleTracing},
		{name: "distributed-tracing-service-name", value: unreadText("etcd"), idle: idleTracing},
		{name: "distributed-tracing-instance-id", value: unreadText(""), idle: idleTracing},
		{name: "distributed-tracing-sampling-rate", value: unreadNumber(0, 1_000_000), idle: idleTracing},
	}
}

func (c *Config) corruptionOptions() []option {
	return []option{
		{name: "corrupt-check-time", value: duration(&c.CorruptCheckTime), help: "Time between two comparisons of the nodes' data (0s: never)"},
		{name: "compact-hash-check-time", value: duration(&c.CompactHashCheckTime), help: "Shortest time between two comparisons after compactions, with the feature CompactHashCheck"},
		{name: "feature-gates", value: gates(&c.featureGates), help: "Features to switch, name=true,...: CompactHashCheck compares the nodes' data after compactions, InitialCorruptCheck a node's with the others' before it serves"},
	}
}

func (c *Config) loggingOptions() []option {
	return []option{
		{name: "log-level", value: level(&c.LogLevel), help: "Lowest level to log: debug, info, warn, error"},
		{name: "log-format", value: choice(&c.LogFormat, JSONLog, ConsoleLog), help: "Form of a log line: json or console"},
		{name: "log-outputs", value: list(&c.LogOutputs), help: "Where to log: stderr, stdout or files, separated by commas"},
		{name: "logger", value: unreadChoice("zap"), idle: "there is one logger here"},
		{name: "enable-log-rotation", value: unreadToggle(false), idle: idleRotation},
		{name: "log-rotation-config-json", value: unreadText(`{"maxsize": 100, "maxage": 0, "maxbackups": 0, "localtime": false, "compress": false}`), idle: idleRotation},
	}
}

func tuningOptions() []option {
	return []option{
		{name: "backend-bbolt-freelist-type", value: unreadText(""), idle: idleBackend},
		{name: "backend-batch-interval", value: unreadDuration(0), idle: idleBackend},
		{name: "backend-batch-limit", value: unreadNumber(0, math.MaxInt), idle: idleBackend},
		{name: "bootstrap-defrag-threshold-megabytes", value: unreadNumber[uint](0, math.MaxUint), idle: idleBackend},
		{name: "memory-mlock", value: unreadToggle(false), idle: idleBackend},
		{name: "raft-read-timeout", value: unreadDuration(5 * time.Second), key: noKey, idle: idleDeadPeers},
		{name: "raft-write-timeout", value: unreadDuration(5 * time.Second), key: noKey, idle: idleDeadPeers},
		{name: "downgrade-check-time", value: unreadDuration(5 * time.Second), idle: "this version can't be downgraded to"},
		{name: "v2-deprecation", value: unreadText("write-only-drop-data"), idle: "there is no v2 store here"},
	}
}

func unsafeOptions() []option {
	return []option{
		{name: "force-new-cluster", value: unreadToggle(false), absent: absentForce},
		{name: "unsafe-no-fsync", value: unreadToggle(false), absent: absentNoFsync},
	}
}

// obsoleteOptions are those of earlier etcds; files written for these, etcd's own sample
// among them, still have them.
func obsoleteOptions() []option {
	all := []option{
		{name: "discovery", value: unreadText(""), absent: absentDiscovery},
		{name: "discovery-proxy", value: unreadText(""), absent: absentDiscovery},
		{name: "proxy", value: unreadText("off"), absent: absentProxy, asks: asksProxy},
		{name: "proxy-failure-wait", value: unreadNumber(5000, math.MaxInt), idle: idleProxy},
		{name: "proxy-refresh-interval", value: unreadNumber(30000, math.MaxInt), idle: idleProxy},
		{name: "proxy-dial-timeout", value: unreadNumber(1000, math.MaxInt), idle: idleProxy},
		{name: "proxy-write-timeout", value: unreadNumber(5000, math.MaxInt), idle: idleProxy},
		{name: "proxy-read-timeout", value: unreadNumber(0, math.MaxInt), idle: idleProxy},
		{name: "enable-v2", value: unreadToggle(false), idle: "there is no v2 store here"},
	}
	for _, name := range []string{
		"cluster-active-size", "cluster-remove-delay", "cluster-sync-interval", "config", "force",
		"max-result-buffer", "max-retry-attempts", "peer-heartbeat-interval", "peer-election-timeout",
		"retry-interval", "snapshot", "v", "vv", "test.coverprofile", "test.outputdir",
	} {
		all = append(all, option{name: name, value: &anything{}, key: noKey, idle: idleGone})
	}
	return all
}
