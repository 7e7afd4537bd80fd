package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Nemesis does to a cluster what a minority of it may suffer, one fault at a time, and
// now and then to all nodes what they may suffer at once.
type Nemesis struct {
	Cluster *Cluster
	// Network is the cluster's, nil for none: then no link is cut.
	Network *Network
	Report  *Report
	// Kinds are the faults to choose from; nil for all.
	Kinds []string
	// Longest is how long a fault lasts at the most, Rest how long the cluster is left
	// alone between two.
	Longest, Rest time.Duration
}

// fault begins a fault of a node and returns what ends it.
type fault func(n *Nemesis, node int) (end func() error, err error)

var faults = map[string]fault{
	"kill": func(n *Nemesis, node int) (func() error, error) {
		return n.Cluster.Nodes[node].Launch, n.Cluster.Nodes[node].Kill()
	},
	"stop": func(n *Nemesis, node int) (func() error, error) {
		_, err := n.Cluster.Nodes[node].Terminate()
		return n.Cluster.Nodes[node].Launch, err
	},
	"freeze": func(n *Nemesis, node int) (func() error, error) {
		return n.Cluster.Nodes[node].Thaw, n.Cluster.Nodes[node].Freeze()
	},
	"kill-all": func(n *Nemesis, _ int) (func() error, error) {
		for _, node := range n.Cluster.Nodes {
			if err := node.Kill(); err != nil {
				return nil, err
			}
		}
		return func() error {
			for _, node := range n.Cluster.Nodes {
				if err := node.Launch(); err != nil {
					return err
				}
			}
			return nil
		}, nil
	},
	"rolling": func(n *Nemesis, _ int) (func() error, error) {
		for _, node := range n.Cluster.Nodes {
			if _, err := node.Terminate(); err != nil {
				return nil, err
			}
			if err := node.Launch(); err != nil {
				return nil, err
			}
			ctx, cancel := context.WithTimeout(context.Background(), healTimeout)
			err := node.AwaitHealthy(ctx)
			cancel()
			if err != nil {
				return nil, err
			}
		}
		return func() error { return nil }, nil
	},
	"isolate": func(n *Nemesis, node int) (func() error, error) { return n.Network.Heal, n.Network.Isolate(node) },
	"one-way": func(n *Nemesis, node int) (func() error, error) {
		return n.Network.Heal, n.Network.Cut(node, (node+1)%len(n.Cluster.Nodes))
	},
	"deaf": func(n *Nemesis, node int) (func() error, error) {
		for other := range n.Cluster.Nodes {
			if other != node {
				if err := n.Network.Cut(other, node); err != nil {
					return n.Network.Heal, err
				}
			}
		}
		return n.Network.Heal, nil
	},
}

// needNetwork are the faults that cut links.
var needNetwork = []string{"isolate", "one-way", "deaf"}

// healTimeout bounds the time until the cluster is healthy after a fault.
const healTimeout = time.Minute

// Run breaks the cluster by a seed until ctx ends, and leaves it whole.
func (n *Nemesis) Run(ctx context.Context, seed uint64) error {
	rnd := rand.New(rand.NewPCG(seed, 77))
	kinds := n.Kinds
	if kinds == nil {
		for kind := range faults {
			kinds = append(kinds, kind)
		}
	}
	kinds = slices.DeleteFunc(slices.Clone(kinds), func(k string) bool { return n.Network == nil && slices.Contains(needNetwork, k) })
	slices.Sort(kinds)
	for sleep(ctx, n.Rest); ctx.Err() == nil; sleep(ctx, n.Rest) {
		kind, node := kinds[rnd.IntN(len(kinds))], rnd.IntN(len(n.Cluster.Nodes))
		begin := faults[kind]
		if begin == nil {
			return fmt.Errorf("no fault %q", kind)
		}
		n.Report.fault(kind)
		end, err := begin(n, node)
		if err != nil {
			return fmt.Errorf("%s of node %d: %w", kind, node+1, err)
		}
		sleep(ctx, n.Longest/10+time.Duration(rnd.Int64N(int64(n.Longest)*9/10)))
		if err := end(); err != nil {
			return fmt.Errorf("end %s of node %d: %w", kind, node+1, err)
		}
		heal, cancel := context.WithTimeout(context.WithoutCancel(ctx), healTimeout)
		err = n.Cluster.AwaitHealthy(heal)
		cancel()
		if err != nil {
			return fmt.Errorf("after %s of node %d: %w", kind, node+1, err)
		}
	}
	return nil
}
