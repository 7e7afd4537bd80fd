package node

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/latchkey-db/latchkey/internal/peer"
)

// traffic measures what passes between this node and another.
type traffic struct {
	sent, received, failures prometheus.Counter
	roundTrips               prometheus.Observer
}

var _ peer.Traffic = traffic{}

// newTraffic returns what measures the traffic with each node, under etcd's names, labels
// and buckets.
func newTraffic(registry *prometheus.Registry) func(node uint64) peer.Traffic {
	counter := func(name, label, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(
			prometheus.CounterOpts{Namespace: "etcd", Subsystem: "network", Name: name, Help: help}, []string{label})
		registry.MustRegister(c)
		return c
	}
	sent := counter("peer_sent_bytes_total", "To", "Bytes of messages to other nodes.")
	received := counter("peer_received_bytes_total", "From", "Bytes of messages from other nodes.")
	failures := counter("peer_sent_failures_total", "To", "Streams to other nodes that could not be opened, or broke.")
	roundTrips := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "etcd", Subsystem: "network", Name: "peer_round_trip_time_seconds",
		Help: "The time that other nodes take to answer pings.", Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
	}, []string{"To"})
	registry.MustRegister(roundTrips)
	return func(node uint64) peer.Traffic {
		name := strconv.FormatUint(node, 16)
		return traffic{
			sent: sent.WithLabelValues(name), received: received.WithLabelValues(name), failures: failures.WithLabelValues(name),
			roundTrips: roundTrips.WithLabelValues(name),
		}
	}
}

// Sent counts bytes sent.
func (t traffic) Sent(bytes int) { t.sent.Add(float64(bytes)) }

// Received counts bytes received.
func (t traffic) Received(bytes int) { t.received.Add(float64(bytes)) }

// SendFailed counts a stream that failed.
func (t traffic) SendFailed() { t.failures.Inc() }

// RoundTrip measures the answer to a ping.
func (t traffic) RoundTrip(took time.Duration) { t.roundTrips.Observe(took.Seconds()) }
