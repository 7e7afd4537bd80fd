package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"slices"
	"strconv"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
)

const (
	// maxRequestBytes leaves room for what a message needs beside a request.
	maxRequestBytes = math.MaxInt32 - 512<<10
	// maxElectionTimeout is etcd's bound.
	maxElectionTimeout = 50 * time.Second

	// Above these etcd advises against a setting.
	largeRequestBytes = 10 << 20
	largeQuotaBytes   = 8 << 30

	// The bounds of bcrypt's cost, and etcd's default.
	minBcryptCost, maxBcryptCost, defaultBcryptCost = 4, 31, 10
)

// finish fills in what follows from other settings and checks the whole. made
// holds the options that were set. The first fault is returned.
func (c *Config) finish(made map[string]string) error {
	_, listens := made["listen-client-urls"]
	_, advertises := made["advertise-client-urls"]
	if listens && !advertises {
		return errors.New("--advertise-client-urls is required when --listen-client-urls is set")
	}
	if c.Name == "" {
		return errors.New("--name is empty")
	}
	if c.DataDir == "" {
		c.DataDir, c.EtcdDataDir = c.Name+".latchkey", c.Name+".etcd"
	}
	if err := c.finishSplits(); err != nil {
		return err
	}
	for _, check := range []func() error{c.checkURLs, func() error { return c.checkTLS(made) }, c.checkPeerTLS, c.finishCluster, c.checkTimes, c.finishCompaction, c.finishFeatures} {
		if err := check(); err != nil {
			return err
		}
	}
	c.adviseLimits()
	return nil
}

func (c *Config) checkURLs() error {
	if err := c.checkListens(); err != nil {
		return err
	}
	for _, a := range []struct {
		flag string
		urls types.URLs
	}{
		{"--advertise-client-urls", c.AdvertiseClientURLs},
		{"--initial-advertise-peer-urls", c.AdvertisePeerURLs},
	} {
		if len(a.urls) == 0 {
			return fmt.Errorf("%s is empty", a.flag)
		}
		for _, u := range a.urls {
			if hasHost(u) && u.Hostname() == "" {
				return fmt.Errorf("invalid value %q for %s: the host is missing", u.String(), a.flag)
			}
		}
	}
	return nil
}

// secure reports whether a URL is one of TLS.
// listens are the URLs to listen on, of which only optional ones may be none.
type listens struct {
	flag     string
	urls     types.URLs
	optional bool
}

// clientListens are those for clients.
func (c *Config) clientListens() []listens {
	return []listens{
		{"--listen-client-urls", c.ListenClientURLs, false},
		{"--listen-client-http-urls", c.ListenHTTPURLs, true},
		{"--listen-metrics-urls", c.ListenMetricsURLs, true},
	}
}

// checkListens checks each URL to listen on, and that none is to serve two things.
func (c *Config) checkListens() error {
	for _, l := range append(c.clientListens(), listens{"--listen-peer-urls", c.ListenPeerURLs, false}) {
		if len(l.urls) == 0 && !l.optional {
			return fmt.Errorf("%s is empty", l.flag)
		}
		for _, u := range l.urls {
			if err := checkListen(u); err != nil {
				return fmt.Errorf("invalid value %q for %s: %w", u.String(), l.flag, err)
			}
		}
	}
	taken := make(map[string]string)
	for _, l := range c.clientListens() {
		for _, u := range l.urls {
			at := u.Host + u.Path
			if other, ok := taken[at]; ok && other != l.flag && u.Port() != anyPort {
				return fmt.Errorf("%s and %s both have %s", other, l.flag, u.String())
			}
			taken[at] = l.flag
		}
	}
	return nil
}

// anyPort is the port of which the system makes a free one.
const anyPort = "0"

func secure(u url.URL) bool { return u.Scheme == "https" || u.Scheme == "unixs" }

// hasHost reports whether the scheme is one of network addresses, not of files.
func hasHost(u url.URL) bool { return u.Scheme == "http" || u.Scheme == "https" }

func checkListen(u url.URL) error {
	if !hasHost(u) {
		if u.Host+u.Path == "" {
			return errors.New("the path of the socket is missing")
		}
		return nil
	}
	if h := u.Hostname(); h != "localhost" && net.ParseIP(h) == nil {
		return errors.New("the host to listen on must be an IP address or localhost")
	}
	return checkPort(u.Port())
}

func checkPort(s string) error {
	if _, err := strconv.ParseUint(s, 10, 16); err != nil {
		return fmt.Errorf("the port must be a number up to %d", math.MaxUint16)
	}
	return nil
}

// finishCluster reads --initial-cluster, which must agree with what this node
// says of itself.
func (c *Config) finishCluster() error {
	if c.initialCluster == "" {
		c.InitialCluster = types.URLsMap{c.Name: slices.Clone(c.AdvertisePeerURLs)}
		return nil
	}
	nodes, err := types.NewURLsMap(c.initialCluster)
	if err != nil {
		return fmt.Errorf("invalid value %q for --initial-cluster: %w", c.initialCluster, err)
	}
	own, ok := nodes[c.Name]
	if !ok {
		return fmt.Errorf("--initial-cluster does not list this node, %q", c.Name)
	}
	if own.String() != c.AdvertisePeerURLs.String() {
		return fmt.Errorf("--initial-cluster has %q at %s, but --initial-advertise-peer-urls is %s",
			c.Name, own, c.AdvertisePeerURLs)
	}
	taken := make(map[string]string)
	for name, urls := range nodes {
		for _, u := range urls {
			if other, ok := taken[u.String()]; ok && other != name {
				return fmt.Errorf("--initial-cluster has %s for two nodes", u.String())
			}
			taken[u.String()] = name
		}
	}
	c.InitialCluster = nodes
	return nil
}

func (c *Config) checkTimes() error {
	if 5*c.HeartbeatInterval > c.ElectionTimeout {
		return fmt.Errorf("--election-timeout of %dms must be at least 5 times --heartbeat-interval of %dms",
			c.ElectionTimeout.Milliseconds(), c.HeartbeatInterval.Milliseconds())
	}
	if c.ElectionTimeout > maxElectionTimeout {
		return fmt.Errorf("--election-timeout of %dms must be at most %dms",
			c.ElectionTimeout.Milliseconds(), maxElectionTimeout.Milliseconds())
	}
	return nil
}

// finishCompaction reads --auto-compaction-retention by the mode: revisions, or
// a duration that is hours where it has no unit.
func (c *Config) finishCompaction() error {
	s := c.compactionRetention
	fault := func(text string) error {
		return fmt.Errorf("invalid value %q for --auto-compaction-retention: must be %s", s, text)
	}
	n, err := strconv.ParseInt(s, 10, 64)
	whole := err == nil && n >= 0
	switch c.CompactionMode {
	case RevisionCompaction:
		if !whole {
			return fault("a number of revisions")
		}
		c.CompactionRevisions = n
	case PeriodicCompaction:
		if whole && n <= math.MaxInt64/int64(time.Hour) {
			c.CompactionPeriod = time.Duration(n) * time.Hour
			return nil
		}
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 {
			return fault("a number of hours or a duration such as 30m")
		}
		c.CompactionPeriod = d
	}
	return nil
}

func (c *Config) adviseLimits() {
	if c.BcryptCost < minBcryptCost || c.BcryptCost > maxBcryptCost {
		c.BcryptCost = defaultBcryptCost
		c.Warnings = append(c.Warnings, Warning{
			Setting: "--bcrypt-cost",
			Text: fmt.Sprintf("the cost must be from %d to %d; passwords are hashed at %d",
				minBcryptCost, maxBcryptCost, defaultBcryptCost),
		})
	}
	if c.MaxRequestBytes > largeRequestBytes {
		c.Warnings = append(c.Warnings, Warning{
			Setting: "--max-request-bytes",
			Text:    fmt.Sprintf("requests above %d bytes hold up all others", largeRequestBytes),
		})
	}
	if c.QuotaBytes > largeQuotaBytes {
		c.Warnings = append(c.Warnings, Warning{
			Setting: "--quota-backend-bytes",
			Text:    fmt.Sprintf("more than %d bytes make snapshots and restarts slow", int64(largeQuotaBytes)),
		})
	}
}
