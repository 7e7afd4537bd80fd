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
	// Gear is what the cluster was given for the faults.
	Gear   *Gear
	Report *Report
	// Kinds are the faults to choose from.
	Kinds []string
	// Longest is how long a fault lasts at the most, Rest how long the cluster is left
	// alone between two.
	Longest, Rest time.Duration
}

// fault is one kind.
type fault struct {
	needs []*need
	// begin breaks a node and returns what ends it; what is left to chance is drawn from
	// rnd.
	begin func(n *Nemesis, node int, rnd *rand.Rand) (end func() error, err error)
}

var faults = map[string]fault{
	"kill": {nil, func(n *Nemesis, node int, _ *rand.Rand) (func() error, error) {
		return n.Cluster.Nodes[node].Launch, n.Cluster.Nodes[node].Kill()
	}},
	"stop": {nil, func(n *Nemesis, node int, _ *rand.Rand) (func() error, error) {
		_, err := n.Cluster.Nodes[node].Terminate()
		return n.Cluster.Nodes[node].Launch, err
	}},
	"freeze": {nil, func(n *Nemesis, node int, _ *rand.Rand) (func() error, error) {
		return n.Cluster.Nodes[node].Thaw, n.Cluster.Nodes[node].Freeze()
	}},
	"kill-all": {nil, func(n *Nemesis, _ int, _ *rand.Rand) (func() error, error) { return n.Cluster.killAll() }},
	"rolling":  {nil, func(n *Nemesis, _ int, _ *rand.Rand) (func() error, error) { return n.Cluster.restartEach() }},
	"replace": {nil, func(n *Nemesis, node int, _ *rand.Rand) (func() error, error) {
		return n.Cluster.replace(n.Cluster.Nodes[node], false)
	}},
	"lose": {nil, func(n *Nemesis, node int, _ *rand.Rand) (func() error, error) {
		return n.Cluster.replace(n.Cluster.Nodes[node], true)
	}},
	"grow": {nil, func(n *Nemesis, _ int, rnd *rand.Rand) (func() error, error) { return n.Cluster.grow(rnd) }},
	"isolate": {[]*need{links}, func(n *Nemesis, node int, _ *rand.Rand) (func() error, error) {
		return n.Gear.Network.Heal, n.Gear.Network.Isolate(node)
	}},
	"one-way": {[]*need{links}, func(n *Nemesis, node int, _ *rand.Rand) (func() error, error) {
		return n.Gear.Network.Heal, n.Gear.Network.Cut(node, (node+1)%len(n.Cluster.Nodes))
	}},
	"deaf": {[]*need{links}, func(n *Nemesis, node int, _ *rand.Rand) (func() error, error) {
		return n.Gear.Network.Heal, n.Gear.Network.Deafen(node)
	}},
	"flapping": {[]*need{links}, func(n *Nemesis, node int, rnd *rand.Rand) (func() error, error) {
		return n.Gear.Network.Flap(node, between(rnd, 200*time.Millisecond, time.Second)), nil
	}},
	"loss": {[]*need{links, filter}, func(n *Nemesis, node int, rnd *rand.Rand) (func() error, error) {
		return n.Gear.Network.Heal, n.Gear.Network.Lose(node, 5+rnd.IntN(26))
	}},
	"slow-link": {[]*need{links, shaper}, func(n *Nemesis, node int, rnd *rand.Rand) (func() error, error) {
		return n.Gear.Network.Heal, n.Gear.Network.Slow(node, minRate+rnd.IntN(maxRate-minRate))
	}},
	"late": {[]*need{links, tun}, func(n *Nemesis, node int, rnd *rand.Rand) (func() error, error) {
		l, err := n.Gear.Network.Delay(node, HalfOfEverySecond(rnd.Uint64(), 1200*time.Millisecond, 2500*time.Millisecond))
		if err != nil {
			return nil, err
		}
		return l.Close, nil
	}},
	"stuck-disk": {[]*need{loops}, func(n *Nemesis, node int, _ *rand.Rand) (func() error, error) {
		return func() error { return n.Gear.Disks.Thaw(node) }, n.Gear.Disks.Freeze(node)
	}},
	"full-disk": {[]*need{loops}, func(n *Nemesis, node int, _ *rand.Rand) (func() error, error) {
		return func() error { return n.freeDisk(node) }, n.Gear.Disks.Fill(node, 0)
	}},
	"slow-fsync": {[]*need{loops, fuse}, func(n *Nemesis, node int, rnd *rand.Rand) (func() error, error) {
		n.Gear.Disks.DelaySyncs(node, between(rnd, 100*time.Millisecond, 2*time.Second))
		return func() error { n.Gear.Disks.DelaySyncs(node, 0); return nil }, nil
	}},
	"failing-fsync": {[]*need{loops, fuse}, func(n *Nemesis, node int, _ *rand.Rand) (func() error, error) {
		n.Gear.Disks.FailSyncs(node, true)
		return func() error { return n.endFailingSyncs(node) }, nil
	}},
}

// between draws a time.
func between(rnd *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(rnd.Int64N(int64(most-least)+1))
}

// healTimeout bounds the time until the cluster is healthy after a fault.
const healTimeout = time.Minute

// Run breaks the cluster by a seed until ctx ends, and leaves it whole.
func (n *Nemesis) Run(ctx context.Context, seed uint64) error {
	rnd := rand.New(rand.NewPCG(seed, 77))
	kinds := slices.Sorted(slices.Values(n.Kinds))
	for sleep(ctx, n.Rest); ctx.Err() == nil; sleep(ctx, n.Rest) {
		if err := n.strike(ctx, kinds[rnd.IntN(len(kinds))], rnd); err != nil {
			return err
		}
	}
	return nil
}

// Each breaks the cluster by a seed, once in each way, and leaves it whole. It rests before
// and behind each.
func (n *Nemesis) Each(ctx context.Context, seed uint64) error {
	rnd := rand.New(rand.NewPCG(seed, 77))
	kinds := slices.Sorted(slices.Values(n.Kinds))
	for _, i := range rnd.Perm(len(kinds)) {
		sleep(ctx, n.Rest)
		if err := n.strike(ctx, kinds[i], rnd); err != nil {
			return err
		}
	}
	sleep(ctx, n.Rest)
	return nil
}

// strike has one fault befall a node, and returns when the cluster is whole again.
func (n *Nemesis) strike(ctx context.Context, kind string, rnd *rand.Rand) error {
	node := rnd.IntN(len(n.Cluster.Nodes))
	n.Report.fault(kind)
	end, err := faults[kind].begin(n, node, rnd)
	if err != nil {
		return fmt.Errorf("%s of node %d: %w", kind, node+1, err)
	}
	sleep(ctx, n.Longest/10+time.Duration(rnd.Int64N(int64(n.Longest)*9/10)))
	if err := end(); err != nil {
		return fmt.Errorf("end %s of node %d: %w", kind, node+1, err)
	}
	heal, cancel := context.WithTimeout(context.WithoutCancel(ctx), healTimeout)
	defer cancel()
	if err := n.Cluster.AwaitHealthy(heal); err != nil {
		return fmt.Errorf("after %s of node %d: %w", kind, node+1, err)
	}
	return nil
}

// killAll ends all nodes as a power cut would; end starts them again.
func (c *Cluster) killAll() (end func() error, err error) {
	for _, node := range c.Nodes {
		if err := node.Kill(); err != nil {
			return nil, err
		}
	}
	return func() error {
		for _, node := range c.Nodes {
			if err := node.Launch(); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// restartEach stops and starts one node after the other.
func (c *Cluster) restartEach() (end func() error, err error) {
	for _, node := range c.Nodes {
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
}
