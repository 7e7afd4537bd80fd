package config

import (
	"crypto/tls"
	"log/slog"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
)

// Config is what a node was told. Parse returns it complete and checked.
type Config struct {
	// Name is the node's name, unique in the cluster.
	Name string
	// DataDir is the directory that the node keeps everything in.
	DataDir string
	// EtcdDataDir is where etcd would keep its data, given what this node was told; empty
	// where that is DataDir.
	EtcdDataDir string

	// ListenClientURLs are where clients are served, ListenPeerURLs where nodes
	// are. Their hosts are addresses or "localhost".
	ListenClientURLs, ListenPeerURLs types.URLs
	// ListenHTTPURLs are where clients are served by HTTP; where there are any, the
	// client URLs are gRPC's alone. ListenMetricsURLs are where metrics and health
	// checks are served beside that.
	ListenHTTPURLs, ListenMetricsURLs types.URLs
	// AdvertiseClientURLs and AdvertisePeerURLs are what others are told to dial.
	AdvertiseClientURLs, AdvertisePeerURLs types.URLs
	// ReusePort and ReuseAddress are socket options of every listener.
	ReusePort, ReuseAddress bool

	// ClientTLS is what clients are served with over TLS.
	ClientTLS TLS
	// PeerTLS is what other nodes are served with, and reached with, over TLS.
	PeerTLS TLS
	// StrictReconfigCheck refuses changes of the members that leave too few.
	StrictReconfigCheck bool
	// EnableGateway serves the JSON API.
	EnableGateway bool
	// CORS are the origins whose pages may use the JSON API, "*" for all; none where nothing
	// was said of them, which is less than etcd's all.
	CORS []string
	// HostWhitelist are the hosts that HTTP requests without TLS may ask for; "*" or none
	// stands for all.
	HostWhitelist []string

	// InitialCluster lists the cluster's nodes at its first start, with the peer
	// URLs of each. This node is among them.
	InitialCluster types.URLsMap
	// ClusterState says whether a node without data makes a cluster.
	ClusterState ClusterState
	// ClusterToken sets clusters apart whose nodes have the same names and URLs.
	ClusterToken string
	// InitialSplits are the keys at which a new cluster divides its keyspace among
	// data shards, in rising order: one shard more than there are keys.
	InitialSplits [][]byte
	// LogShards is the number of workers that write the data shards' Raft log, fixed at the
	// first start; 0 leaves it to the number of cores.
	LogShards uint

	// HeartbeatInterval is the time between a leader's heartbeats, and Raft's
	// tick. ElectionTimeout is the time without them after which a follower
	// stands for election.
	//
	// Invariant: 5 * HeartbeatInterval <= ElectionTimeout <= 50 s.
	HeartbeatInterval, ElectionTimeout time.Duration

	// QuotaBytes bounds the logical size of the retained versions: 0 for the
	// default bound, negative for none.
	QuotaBytes int64
	// MaxTxnOps bounds the operations of a transaction, MaxRequestBytes the size
	// of a request in bytes. Both are positive.
	MaxTxnOps, MaxRequestBytes int
	// MaxConcurrentStreams bounds the calls of one connection at a time.
	MaxConcurrentStreams uint32
	// PingMinTime is the shortest time that a client may leave between two pings.
	PingMinTime time.Duration
	// PingInterval is the silence after which the server pings a client and
	// PingTimeout how long it waits for the answer; 0 for the default.
	PingInterval, PingTimeout time.Duration
	// ProgressInterval is the time between progress notices of an idle watch; 0
	// for the default.
	ProgressInterval time.Duration

	// CompactionMode says what automatic compaction keeps: versions of the last
	// CompactionPeriod, or the last CompactionRevisions revisions. With both at 0
	// there is none; only the mode's own can be set.
	CompactionMode      CompactionMode
	CompactionPeriod    time.Duration
	CompactionRevisions int64

	// WritesOverShards has writes whose keys lie on several shards be carried out, as they are unless it is
	// switched off.
	WritesOverShards bool

	// CorruptCheckTime is the time between two comparisons of the replicas, 0 for none.
	// With CompactHashCheck they are compared after compactions, CompactHashCheckTime
	// apart at least. InitialCorruptCheck compares a node's with the others before it
	// serves.
	CorruptCheckTime, CompactHashCheckTime time.Duration
	CompactHashCheck, InitialCorruptCheck  bool

	// AuthToken describes the tokens of users, in the form of auth.NewTokens, and
	// AuthTokenTTL says how long simple ones last since their last use, 0 for the
	// default. BcryptCost is what the hash of a password costs.
	AuthToken    string
	AuthTokenTTL time.Duration
	BcryptCost   int

	// EnablePprof serves profiles on the client port.
	EnablePprof bool
	// Metrics is the detail of the metrics.
	Metrics MetricsDetail

	// LogLevel is the lowest level that is logged, LogFormat the form of a line.
	LogLevel  slog.Level
	LogFormat LogFormat
	// LogOutputs are "default", "stderr" and "systemd/journal", all of them
	// standard error, "stdout", or names of files that are appended to.
	LogOutputs []string

	// Warnings is what the operator should know about the settings, in the order
	// of the table.
	Warnings []Warning

	// Settings that finish turns into the fields above.
	compactionRetention, initialCluster, initialSplits, featureGates string
	// Settings that steer Parse.
	configFile            string
	showVersion, showHelp bool
}

// Warning is something about a setting that the operator should know.
type Warning struct {
	// Setting is the flag, environment variable or key of the file, as given.
	Setting string
	// Text says what is to be known, in a clause without a capital.
	Text string
}

// ClusterState says what the first start of a node does.
type ClusterState string

// The states of a cluster at the first start of a node.
const (
	NewCluster      ClusterState = "new"
	ExistingCluster ClusterState = "existing"
)

// CompactionMode says how automatic compaction decides what to keep.
type CompactionMode string

// The modes of automatic compaction.
const (
	PeriodicCompaction CompactionMode = "periodic"
	RevisionCompaction CompactionMode = "revision"
)

// MetricsDetail says how much is measured.
type MetricsDetail string

// The details of metrics; the extensive ones add histograms of calls.
const (
	BasicMetrics     MetricsDetail = "basic"
	ExtensiveMetrics MetricsDetail = "extensive"
)

// LogFormat is the form of a log line.
type LogFormat string

// The forms of log lines: one JSON object, or key=value for people.
const (
	JSONLog    LogFormat = "json"
	ConsoleLog LogFormat = "console"
)

// newConfig returns the configuration without any setting made.
func newConfig() *Config {
	return &Config{
		Name:                 "default",
		ListenClientURLs:     mustURLs("http://localhost:2379"),
		ListenPeerURLs:       mustURLs("http://localhost:2380"),
		AdvertiseClientURLs:  mustURLs("http://localhost:2379"),
		AdvertisePeerURLs:    mustURLs("http://localhost:2380"),
		ClientTLS:            TLS{MinVersion: tls.VersionTLS12, SelfSignedYears: 1},
		EnableGateway:        true,
		StrictReconfigCheck:  true,
		HostWhitelist:        []string{"*"},
		ClusterState:         NewCluster,
		ClusterToken:         "etcd-cluster",
		HeartbeatInterval:    100 * time.Millisecond,
		CompactHashCheckTime: time.Minute,
		ElectionTimeout:      time.Second,
		MaxTxnOps:            128,
		MaxRequestBytes:      3 << 19,
		MaxConcurrentStreams: 1<<32 - 1,
		PingMinTime:          5 * time.Second,
		PingInterval:         2 * time.Hour,
		PingTimeout:          20 * time.Second,
		CompactionMode:       PeriodicCompaction,
		AuthToken:            "simple",
		AuthTokenTTL:         300 * time.Second,
		BcryptCost:           defaultBcryptCost,
		Metrics:              BasicMetrics,
		LogLevel:             slog.LevelInfo,
		LogFormat:            ConsoleLog,
		LogOutputs:           []string{"default"},
		compactionRetention:  "0",
	}
}
