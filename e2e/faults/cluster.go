package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/latchkey-db/latchkey/internal/freeport"
)

// Options say what a cluster is made of.
type Options struct {
	// Binary is the server's path; it takes etcd's flags.
	Binary string
	// Nodes is how many there are at first, and Later how many more may join.
	Nodes, Later int
	// Dir receives the nodes' directories and logs.
	Dir string
	// Args are flags for every node.
	Args []string
	// PeerTLS has nodes reach each other over TLS, as Args say.
	PeerTLS bool
	// Network, if not nil, gives every node a namespace of its own.
	Network *Network
	// Disks, if not nil, gives every node a file system of its own for its directory.
	Disks *Disks
}

// Cluster is the nodes of one cluster.
type Cluster struct {
	// Nodes are the members, Later those that may join.
	Nodes, Later []*Node
}

// Node is one server process and its directory.
type Node struct {
	Name   string
	Client string // host:port
	args   []string
	// cluster are the flags that say of which cluster the node is.
	cluster []string
	// peer is where other nodes reach it, and data its directory.
	peer, data string
	binary     string
	log        string
	ns         string // network namespace, empty for the test's own

	mu sync.Mutex
	// cmd is the process, nil while there is none; waited yields its end. Protected by mu.
	cmd    *exec.Cmd
	waited chan error
}

// New lays out a cluster and starts nothing.
func New(o Options) (*Cluster, error) {
	c := &Cluster{}
	for i := range o.Nodes + o.Later {
		name := fmt.Sprintf("n%d", i+1)
		n := &Node{Name: name, binary: o.Binary, log: filepath.Join(o.Dir, name+".log")}
		var client, peer string
		if o.Network != nil {
			n.ns = o.Network.namespaces[i]
			client, peer = o.Network.addr(i)+":2379", o.Network.addr(i)+":2380"
		} else {
			addrs, err := freeport.Addrs(2)
			if err != nil {
				return nil, err
			}
			client, peer = addrs[0], addrs[1]
		}
		n.Client, n.peer = client, "http://"+peer
		if o.PeerTLS {
			n.peer = "https://" + peer
		}
		data := o.Dir
		if o.Disks != nil {
			data = o.Disks.disks[i].data
		}
		n.data = filepath.Join(data, name)
		n.args = append([]string{
			"--name", name, "--data-dir", n.data,
			"--listen-client-urls", "http://" + client, "--advertise-client-urls", "http://" + client,
			"--listen-peer-urls", n.peer, "--initial-advertise-peer-urls", n.peer,
		}, o.Args...)
		if i < o.Nodes {
			c.Nodes = append(c.Nodes, n)
		} else {
			c.Later = append(c.Later, n)
		}
	}
	var peers []string
	for _, n := range c.Nodes {
		peers = append(peers, n.Name+"="+n.peer)
	}
	for _, n := range c.Nodes {
		n.cluster = []string{"--initial-cluster", strings.Join(peers, ",")}
	}
	return c, nil
}

// Endpoints returns the addresses of the nodes for clients.
func (c *Cluster) Endpoints() (endpoints []string) {
	for _, n := range c.Nodes {
		endpoints = append(endpoints, n.Client)
	}
	return endpoints
}

// Start launches all nodes and waits until each is healthy.
func (c *Cluster) Start(ctx context.Context) error {
	for _, n := range c.Nodes {
		if err := n.Launch(); err != nil {
			return err
		}
	}
	return c.AwaitHealthy(ctx)
}

// AwaitHealthy waits until every node says of itself that it is healthy.
func (c *Cluster) AwaitHealthy(ctx context.Context) error {
	for _, n := range c.Nodes {
		if err := n.AwaitHealthy(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Close kills whatever runs.
func (c *Cluster) Close() error {
	var errs []error
	for _, n := range slices.Concat(c.Nodes, c.Later) {
		errs = append(errs, n.Kill())
	}
	return errors.Join(errs...)
}

// Launch starts the node's process, unless it runs.
func (n *Node) Launch() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.waited) > 0 {
		n.cmd, n.waited = nil, nil // it has ended by itself
	}
	if n.cmd != nil {
		return nil
	}
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	args := slices.Concat(n.args, n.cluster)
	cmd := exec.Command(n.binary, args...)
	if n.ns != "" {
		// ip would give it a copy of all mounts, and keep those of other clusters in use.
		cmd = exec.Command("nsenter", append([]string{"--net=/run/netns/" + n.ns, "--", n.binary}, args...)...)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := errors.Join(cmd.Start(), log.Close()); err != nil {
		return err
	}
	n.cmd, n.waited = cmd, make(chan error, 1)
	waited := n.waited
	go func() { waited <- cmd.Wait() }()
	return nil
}

// PID returns the process's id, 0 while there is none.
func (n *Node) PID() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		return 0
	}
	return n.cmd.Process.Pid
}

// signal sends a signal to the process, if there is one.
func (n *Node) signal(s syscall.Signal) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		return nil
	}
	if err := n.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Kill ends the process as a crash would.
func (n *Node) Kill() error {
	_, err := n.end(syscall.SIGKILL, time.Minute)
	return err
}

// Terminate asks the process to stop and returns how long it took and how it ended.
func (n *Node) Terminate() (took time.Duration, err error) {
	begin := time.Now()
	ended, err := n.end(syscall.SIGTERM, time.Minute)
	var exit *exec.ExitError
	if errors.As(ended, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signal() == syscall.SIGTERM {
			ended = nil // etcd ends by the signal
		}
	}
	if err == nil && ended != nil {
		err = fmt.Errorf("%s ended with %w", n.Name, ended)
	}
	return time.Since(begin), err
}

func (n *Node) end(s syscall.Signal, patience time.Duration) (ended, err error) {
	if err := n.signal(s); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		return nil, nil
	}
	select {
	case ended = <-n.waited:
		n.cmd, n.waited = nil, nil
		return ended, nil
	case <-time.After(patience):
		return nil, fmt.Errorf("%s does not stop", n.Name)
	}
}

// Ended waits for the process to end by itself, for a time at the most, and reports
// whether it did and how.
func (n *Node) Ended(within time.Duration) (ended bool, how error) {
	n.mu.Lock()
	waited := n.waited
	n.mu.Unlock()
	if waited == nil {
		return true, nil
	}
	select {
	case how = <-waited:
		waited <- how // for Launch
		return true, how
	case <-time.After(within):
		return false, nil
	}
}

// Freeze suspends the process, and Thaw lets it go on.
func (n *Node) Freeze() error { return n.signal(syscall.SIGSTOP) }

// Thaw ends Freeze.
func (n *Node) Thaw() error { return n.signal(syscall.SIGCONT) }

// AwaitHealthy waits until the node says that it is healthy, which it does not before a
// majority agrees.
func (n *Node) AwaitHealthy(ctx context.Context) error {
	client := &http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	for {
		err := n.health(ctx, client)
		if err == nil {
			return nil
		}
		n.mu.Lock()
		waited := n.waited
		n.mu.Unlock()
		select {
		case <-time.After(20 * time.Millisecond):
		case ended := <-waited:
			waited <- ended
			return fmt.Errorf("%s ended: %w\n%s", n.Name, ended, n.Log())
		case <-ctx.Done():
			return fmt.Errorf("%s is not healthy: %w\n%s", n.Name, err, n.Log())
		}
	}
}

func (n *Node) health(ctx context.Context, client *http.Client) (err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.Client+"/health", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("health: %s", resp.Status)
	}
	return errors.Join(err, resp.Body.Close())
}

// errUntold is returned for a figure that a server does not tell.
var errUntold = errors.New("the server does not tell this figure")

// ShardsLed returns how many data shards the node leads.
func (n *Node) ShardsLed(ctx context.Context) (led int, err error) {
	v, err := n.Metric(ctx, "latchkey_shards_led")
	return int(v), err
}

// Metric returns the value of a metric without labels.
func (n *Node) Metric(ctx context.Context, name string) (v float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.Client+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	page, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(page)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("%w: %s", errUntold, name)
}

// Log returns the end of the node's log.
func (n *Node) Log() string {
	const most = 8 << 10
	text, err := os.ReadFile(n.log)
	if err != nil {
		return err.Error()
	}
	text = text[max(0, len(text)-most):]
	return string(bytes.TrimSpace(text))
}

// Splits returns the value of --initial-splits that cuts the letters into so many parts.
func Splits(shards int) string {
	var splits []string
	for i := 1; i < shards; i++ {
		splits = append(splits, string(rune('a'+i*26/shards)))
	}
	return strings.Join(splits, ",")
}
