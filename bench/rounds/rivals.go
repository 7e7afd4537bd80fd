package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/latchkey-db/latchkey/internal/freeport"
)

// rival is a server that speaks a protocol of its own. Only locks are measured of it.
type rival struct {
	// note says what is not the same as elsewhere.
	note  string
	start func(ctx context.Context, command []string, dir string) (running, error)
}

// installed returns the rivals that there are as Debian packages on the machine, and what
// is to be said of each.
func installed(jars string) (servers []server, notes []string) {
	redis := rival{start: startRedis, note: "one process, SET NX PX with appendfsync always: no queue (a waiter asks every 5 ms), no fencing token, nothing that outlives the machine"}
	if path, err := exec.LookPath("redis-server"); err == nil {
		servers = append(servers, server{name: "redis", command: []string{path}, rival: &redis})
		notes = append(notes, "redis: "+redis.note)
	} else {
		notes = append(notes, "redis: not measured, redis-server is not installed")
	}
	zoo := rival{start: startZooKeeper, note: "three nodes, sequential ephemeral nodes: a queue, and the zxid of the holder's node may serve as a fencing token"}
	java, err := exec.LookPath("java")
	if _, missing := os.Stat(filepath.Join(jars, "zookeeper.jar")); err == nil && missing == nil {
		servers = append(servers, server{name: "zookeeper", command: []string{java, "-cp", filepath.Join(jars, "*")}, rival: &zoo})
		notes = append(notes, "zookeeper: "+zoo.note)
	} else {
		notes = append(notes, "zookeeper: not measured, libzookeeper-java and a Java are not installed")
	}
	return servers, notes
}

func startRedis(ctx context.Context, command []string, dir string) (r running, err error) {
	addrs, err := freeport.Addrs(1)
	if err != nil {
		return r, err
	}
	host, port, err := net.SplitHostPort(addrs[0])
	if err != nil {
		return r, err
	}
	r = running{store: "redis", endpoints: addrs, close: func() error { return nil }}
	command = append(slices.Clip(command), "--bind", host, "--port", port, "--dir", dir, "--appendonly", "yes", "--appendfsync", "always", "--save", "")
	if r, err = r.launch("n1", command, dir); err != nil {
		return r, err
	}
	return r.await(ctx, "PING\r\n", "+PONG")
}

// startZooKeeper starts three nodes.
func startZooKeeper(ctx context.Context, command []string, dir string) (r running, err error) {
	const nodes = 3
	// Each node has an address for clients, one for its leader and one for elections.
	addrs, err := freeport.Addrs(3 * nodes)
	if err != nil {
		return r, err
	}
	configs, err := zooConfigs(addrs, dir)
	if err != nil {
		return r, err
	}
	r = running{store: "zookeeper", close: func() error { return nil }}
	for i, config := range configs {
		name := fmt.Sprintf("n%d", i+1)
		member := append(slices.Clip(command), "org.apache.zookeeper.server.quorum.QuorumPeerMain", config)
		if r, err = r.launch(name, member, dir); err != nil {
			return r, err
		}
		r.endpoints = append(r.endpoints, addrs[3*i])
	}
	return r.await(ctx, "srvr", "Mode: ")
}

// zooConfigs writes what the nodes of a cluster with three addresses each need, and
// returns their configuration files.
func zooConfigs(addrs []string, dir string) (files []string, err error) {
	var members strings.Builder
	for i := 0; i < len(addrs); i += 3 {
		_, election, err := net.SplitHostPort(addrs[i+2])
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&members, "server.%d=%s:%s\n", i/3+1, addrs[i+1], election)
	}
	for i := 0; i < len(addrs); i += 3 {
		host, port, err := net.SplitHostPort(addrs[i])
		if err != nil {
			return nil, err
		}
		id := strconv.Itoa(i/3 + 1)
		data := filepath.Join(dir, "n"+id)
		config := "tickTime=2000\ninitLimit=10\nsyncLimit=5\nmaxSessionTimeout=60000\nmaxClientCnxns=0\nadmin.enableServer=false\n" +
			"dataDir=" + data + "\nclientPortAddress=" + host + "\nclientPort=" + port + "\n" + members.String()
		file := data + ".cfg"
		err = errors.Join(os.MkdirAll(data, 0o700), os.WriteFile(filepath.Join(data, "myid"), []byte(id), 0o600), os.WriteFile(file, []byte(config), 0o600))
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// launch returns r with one more node, which its close ends. It ends the others if it fails.
func (r running) launch(name string, command []string, dir string) (running, error) {
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return r, errors.Join(err, r.close())
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := errors.Join(cmd.Start(), log.Close()); err != nil {
		return r, errors.Join(err, r.close())
	}
	r.nodes = append(r.nodes, node{name: name, pid: cmd.Process.Pid})
	others := r.close
	r.close = func() error {
		err := cmd.Process.Kill()
		_ = cmd.Wait() // says that it was killed
		return errors.Join(err, others())
	}
	return r, nil
}

// await returns r when every node answers a question as it should, and else ends it.
func (r running) await(ctx context.Context, question, answer string) (running, error) {
	for _, endpoint := range r.endpoints {
		for !answers(ctx, endpoint, question, answer) {
			if err := pause(ctx, 50*time.Millisecond); err != nil {
				return r, errors.Join(fmt.Errorf("start: %w", err), r.close())
			}
		}
	}
	return r, nil
}

// answers reports whether the first thing that a node says to a question has the answer.
func answers(ctx context.Context, endpoint, question, answer string) bool {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", endpoint)
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return false
	}
	if _, err := io.WriteString(c, question); err != nil {
		return false
	}
	said := make([]byte, 4096)
	// ZooKeeper's answer comes in one piece, and what comes with an error is not it.
	n, err := io.ReadAtLeast(c, said, len(answer))
	return err == nil && bytes.Contains(said[:n], []byte(answer))
}

// pause waits for some time.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
