package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Network is a bridge with a network namespace for each node, made and removed by the
// program that uses it, which must be root. Links between nodes can be cut, in one
// direction or both, lose packets and be slow; what was connected stays so.
type Network struct {
	bridge     string
	subnet     string
	namespaces []string
	cuts       map[[2]int]bool
	// lossy are the nodes that lose packets, slow those whose links are.
	lossy, slow map[int]bool
}

// mostNetworks is how many networks can be on a machine at a time.
const mostNetworks = 250

// NewNetwork makes a network for some nodes. Its bridge is named after its addresses, so
// that two programs never use the same ones.
func NewNetwork(nodes int) (n *Network, err error) {
	if n, err = claim(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if err := errors.Join(ip("addr", "add", n.subnet+".254/24", "dev", n.bridge), ip("link", "set", n.bridge, "up")); err != nil {
		return n, err
	}
	for i := range nodes {
		ns := fmt.Sprintf("%s-n%d", n.bridge, i+1)
		if err := ip("netns", "add", ns); err != nil {
			return n, err
		}
		n.namespaces = append(n.namespaces, ns)
		outer := n.link(i)
		err := errors.Join(
			ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", ns),
			ip("link", "set", outer, "master", n.bridge, "up"),
			ip("-n", ns, "addr", "add", n.addr(i)+"/24", "dev", "eth0"),
			ip("-n", ns, "link", "set", "eth0", "up"),
			ip("-n", ns, "link", "set", "lo", "up"),
		)
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// claim makes the bridge of the first addresses that nobody uses.
func claim() (*Network, error) {
	var err error
	for i := range mostNetworks {
		number := (os.Getpid() + i) % mostNetworks
		n := &Network{
			bridge: fmt.Sprintf("lk%d", number), subnet: fmt.Sprintf("10.213.%d", number),
			cuts: make(map[[2]int]bool), lossy: make(map[int]bool), slow: make(map[int]bool),
		}
		if err = ip("link", "add", n.bridge, "type", "bridge"); err == nil {
			return n, nil
		}
		if !strings.Contains(err.Error(), "File exists") {
			break
		}
	}
	return nil, fmt.Errorf("make network: %w", err)
}

// addr returns the address of a node, which count from 0.
func (n *Network) addr(i int) string { return fmt.Sprintf("%s.%d", n.subnet, i+1) }

// link returns the name of a node's end at the bridge.
func (n *Network) link(i int) string { return fmt.Sprintf("%sv%d", n.bridge, i+1) }

func ip(args ...string) error { return command("ip", args...) }

// command runs a program that says nothing but what went wrong.
func command(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// Cut drops what a node sends to another.
func (n *Network) Cut(from, to int) error {
	if n.cuts[[2]int{from, to}] {
		return nil
	}
	n.cuts[[2]int{from, to}] = true
	return ip("-n", n.namespaces[from], "route", "add", "blackhole", n.addr(to)+"/32")
}

// Isolate cuts a node off from all others, which clients can still reach.
func (n *Network) Isolate(node int) error {
	var errs []error
	for other := range n.namespaces {
		if other != node {
			errs = append(errs, n.Cut(node, other), n.Cut(other, node))
		}
	}
	return errors.Join(errs...)
}

// Deafen has a node hear nothing of the others, which hear it.
func (n *Network) Deafen(node int) error {
	var errs []error
	for other := range n.namespaces {
		if other != node {
			errs = append(errs, n.Cut(other, node))
		}
	}
	return errors.Join(errs...)
}

// Flap cuts a node off from the others and mends its links, each for so long, until it is
// ended; then all links are mended.
func (n *Network) Flap(node int, every time.Duration) (end func() error) {
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			for _, step := range []func() error{func() error { return n.Isolate(node) }, n.Heal} {
				if err := step(); err != nil {
					ended <- errors.Join(err, n.Heal())
					return
				}
				select {
				case <-t.C:
				case <-stop:
					ended <- n.Heal()
					return
				}
			}
		}
	}()
	return func() error {
		close(stop)
		return <-ended
	}
}

// lossTable is the name of the rules that lose packets.
const lossTable = "latchkey-faults"

// Lose drops packets of a node at random, so many of a hundred that come in and as many
// that go out, those of clients too.
func (n *Network) Lose(node, percent int) error {
	n.lossy[node] = true
	rules := fmt.Sprintf(`add table inet %[1]s
add chain inet %[1]s in { type filter hook input priority 0; }
add chain inet %[1]s out { type filter hook output priority 0; }
add rule inet %[1]s in iifname eth0 numgen random mod 100 < %[2]d drop
add rule inet %[1]s out oifname eth0 numgen random mod 100 < %[2]d drop
`, lossTable, percent)
	cmd := exec.Command("ip", "netns", "exec", n.namespaces[node], "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft of node %d: %w: %s", node+1, err, out)
	}
	return nil
}

// What slow links carry, in bits per second, and how long bytes wait at most; those that
// would wait longer are lost.
const (
	minRate, maxRate = 200_000, 5_000_000
	longestQueue     = 500 * time.Millisecond
)

// queue returns tc's words for a queue that lets so many bits pass in a second.
func queue(rate int) []string {
	return []string{"tbf", "rate", fmt.Sprintf("%dbit", rate), "burst", "3200", "latency", fmt.Sprintf("%dms", longestQueue.Milliseconds())}
}

// queues does something to the queues of what comes to a node and of what it sends.
func (n *Network) queues(node int, verb string, words ...string) error {
	return errors.Join(
		command("tc", append([]string{"qdisc", verb, "dev", n.link(node), "root"}, words...)...),
		command("tc", append([]string{"-n", n.namespaces[node], "qdisc", verb, "dev", "eth0", "root"}, words...)...),
	)
}

// Slow lets so many bits pass in a second from a node and as many to it, those of clients
// too: what comes faster waits, and is lost after longestQueue.
func (n *Network) Slow(node, rate int) error {
	n.slow[node] = true
	return n.queues(node, "replace", queue(rate)...)
}

// Heal mends all links.
func (n *Network) Heal() error {
	var errs []error
	for node := range n.lossy {
		errs = append(errs, ip("netns", "exec", n.namespaces[node], "nft", "delete", "table", "inet", lossTable))
	}
	clear(n.lossy)
	for node := range n.slow {
		errs = append(errs, n.queues(node, "del"))
	}
	clear(n.slow)
	for link := range n.cuts {
		errs = append(errs, ip("-n", n.namespaces[link[0]], "route", "del", "blackhole", n.addr(link[1])+"/32"))
	}
	clear(n.cuts)
	return errors.Join(errs...)
}

// Close removes the network.
func (n *Network) Close() error {
	var errs []error
	for i, ns := range n.namespaces {
		// The link is gone at once, what is in a namespace only some time later.
		errs = append(errs, ip("link", "del", n.link(i)), ip("netns", "del", ns))
	}
	return errors.Join(append(errs, ip("link", "del", n.bridge))...)
}
