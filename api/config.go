package api

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/lock"
)

// The values in force where Config leaves them at zero, etcd's.
const (
	DefaultMaxTxnOps        = 128
	DefaultMaxRequestBytes  = 3 << 19 // 1.5 MiB
	DefaultElectionTimeout  = time.Second
	DefaultRequestTimeout   = 5*time.Second + 2*DefaultElectionTimeout
	DefaultProgressInterval = 10 * time.Minute
	DefaultPingMinTime      = 5 * time.Second
	DefaultPingInterval     = 2 * time.Hour
	DefaultPingTimeout      = 20 * time.Second
)

const (
	// minProgressInterval is the shortest interval of progress notices.
	minProgressInterval = 100 * time.Millisecond
	// messageOverhead is how much larger than the largest request a message may
	// be, in bytes.
	messageOverhead = 512 << 10
)

// Config is what a Server is made of. Every layer below is required but Peers; of the rest
// zero means etcd's default.
type Config struct {
	// The layers below.
	Store       Store
	Leases      Leases
	Watches     Watches
	Cluster     Cluster
	Maintenance Maintenance
	Users       Users
	// Peers are the other nodes, whose calls may wait for locks; nil where there are none.
	Peers lock.Peers

	// Tokens issues and knows the tokens of users. Required.
	Tokens auth.Tokens
	// BcryptCost is what a password's hash costs. Zero: auth.DefaultCost.
	BcryptCost int
	// CertificateUsers is set where the common name of a client's verified
	// certificate is a user's name.
	CertificateUsers bool

	// Log receives what an operator should know. Required.
	Log *slog.Logger
	// Metrics registers the server's metrics, and /metrics serves all that is in
	// it. Required.
	Metrics *prometheus.Registry
	// SnapshotDir is the directory in which a backup lies while it is sent; it
	// needs room for the whole keyspace. Empty: the system's directory for
	// temporary files.
	SnapshotDir string

	// MaxTxnOps bounds the operations of a transaction.
	MaxTxnOps int
	// MaxRequestBytes bounds the size of a request, in bytes.
	MaxRequestBytes int
	// MaxConcurrentStreams bounds the calls of one connection at a time. Zero:
	// unbounded.
	MaxConcurrentStreams uint32
	// QuotaBytes bounds the logical size of all retained versions. Zero:
	// DefaultQuotaBytes; negative: no bound.
	QuotaBytes int64

	// ElectionTimeout is the time after which a shard without its leader elects
	// another. The shortest lease and the patience of streams that require a
	// leader follow from it.
	ElectionTimeout time.Duration
	// RequestTimeout bounds the read that /health makes.
	RequestTimeout time.Duration
	// ProgressInterval is the time between the progress notices of an idle watch,
	// at least 100 ms; less is raised to that.
	ProgressInterval time.Duration

	// PingMinTime is the shortest time between two pings of a client; one that
	// pings more often is disconnected.
	PingMinTime time.Duration
	// PingInterval is the time without traffic after which a client is pinged,
	// PingTimeout how long its answer is waited for.
	PingInterval, PingTimeout time.Duration

	// DisableGateway leaves out the JSON APIs, under /v3 and /api/v1.
	DisableGateway bool
	// AllowedOrigins are the origins, "*" for all, whose pages may use the JSON APIs and read
	// HTTP answers beside those that come from where they ask.
	AllowedOrigins []string
	// AllowedHosts are the host names that HTTP requests without TLS may ask for. None
	// at all, or "*" among them, stands for all.
	AllowedHosts []string
	// EnablePprof serves /debug/pprof.
	EnablePprof bool
	// ExtensiveMetrics adds histograms of the time that calls take.
	ExtensiveMetrics bool
}

// withDefaults returns the configuration with its zeros filled in, or an error
// that names every fault.
func (c Config) withDefaults() (Config, error) {
	if err := c.validate(); err != nil {
		return Config{}, err
	}
	setDefault(&c.BcryptCost, auth.DefaultCost)
	setDefault(&c.MaxTxnOps, DefaultMaxTxnOps)
	setDefault(&c.MaxRequestBytes, DefaultMaxRequestBytes)
	setDefault(&c.MaxConcurrentStreams, math.MaxUint32)
	setDefault(&c.QuotaBytes, DefaultQuotaBytes)
	setDefault(&c.ElectionTimeout, DefaultElectionTimeout)
	setDefault(&c.RequestTimeout, DefaultRequestTimeout)
	setDefault(&c.ProgressInterval, DefaultProgressInterval)
	setDefault(&c.PingMinTime, DefaultPingMinTime)
	setDefault(&c.PingInterval, DefaultPingInterval)
	setDefault(&c.PingTimeout, DefaultPingTimeout)
	c.ProgressInterval = max(c.ProgressInterval, minProgressInterval)
	return c, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c Config) validate() error {
	var faults []error
	for name, missing := range map[string]bool{
		"Store": c.Store == nil, "Leases": c.Leases == nil, "Watches": c.Watches == nil,
		"Cluster": c.Cluster == nil, "Maintenance": c.Maintenance == nil,
		"Users": c.Users == nil, "Tokens": c.Tokens == nil,
		"Log": c.Log == nil, "Metrics": c.Metrics == nil,
	} {
		if missing {
			faults = append(faults, fmt.Errorf("%s is missing", name))
		}
	}
	for name, value := range map[string]int64{
		"MaxTxnOps": int64(c.MaxTxnOps), "MaxRequestBytes": int64(c.MaxRequestBytes),
		"ElectionTimeout": int64(c.ElectionTimeout), "RequestTimeout": int64(c.RequestTimeout),
		"ProgressInterval": int64(c.ProgressInterval), "PingMinTime": int64(c.PingMinTime),
		"PingInterval": int64(c.PingInterval), "PingTimeout": int64(c.PingTimeout),
	} {
		if value < 0 {
			faults = append(faults, fmt.Errorf("%s is negative", name))
		}
	}
	if c.MaxRequestBytes > math.MaxInt32-messageOverhead {
		faults = append(faults, fmt.Errorf("MaxRequestBytes is above %d", math.MaxInt32-messageOverhead))
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("check configuration of the API: %w", err)
	}
	return nil
}

// shortestLease is the shortest time to live that is granted, in seconds: one and
// a half election timeouts, rounded up.
func (c Config) shortestLease() int64 {
	return int64(math.Ceil((c.ElectionTimeout * 3 / 2).Seconds()))
}
