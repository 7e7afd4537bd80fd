package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// server is one command to measure.
type server struct {
	name    string
	command []string
	// rival is set for a server that does not speak etcd's protocol.
	rival *rival
}

// divisible reports whether the command has a place for splits.
func (s server) divisible() bool { return slices.Contains(s.command, "{}") }

// variant is a server with some number of shards, 0 where it has no choice.
type variant struct {
	server server
	shards int
}

func (v variant) name() string {
	if v.shards < 2 {
		return v.server.name
	}
	return fmt.Sprintf("%s, %d shards", v.server.name, v.shards)
}

// undivided returns the same server with one shard.
func (v variant) undivided() variant { return variant{server: v.server, shards: 1} }

// command returns the command with splits in their places.
func (v variant) command() []string {
	command := slices.Clone(v.server.command)
	for i, word := range command {
		if word == "{}" {
			command[i] = splits(v.shards)
		} else if n, err := strconv.Atoi(strings.Trim(word, "{}")); err == nil && word[0] == '{' {
			command[i] = splits(n)
		}
	}
	return command
}

// splits lays the keys of bench on so many shards evenly.
func splits(shards int) string {
	var keys []string
	for i := 1; i < shards; i++ {
		keys = append(keys, fmt.Sprintf("bench/%02x/", i*256/shards))
	}
	return strings.Join(keys, ",")
}

// variants returns those of servers that a figure is measured with.
func (f figure) variants(servers []server) (all []variant) {
	return group{figures: []figure{f}}.variants(servers)
}

// variants returns those of servers that any figure of the group is measured with.
func (g group) variants(servers []server) (all []variant) {
	var shards []int
	for _, f := range g.figures {
		shards = append(shards, f.shards...)
	}
	slices.Sort(shards)
	shards = slices.Compact(shards)
	for _, s := range servers {
		candidates := []variant{{server: s}}
		if s.divisible() {
			candidates = nil
			for _, n := range shards {
				candidates = append(candidates, variant{server: s, shards: n})
			}
		}
		for _, v := range candidates {
			if slices.ContainsFunc(g.figures, func(f figure) bool { return f.measuredWith(v) }) {
				all = append(all, v)
			}
		}
	}
	return all
}

// measuredWith reports whether the figure is measured with a variant.
func (f figure) measuredWith(v variant) bool {
	if v.server.rival != nil {
		return f.locks()
	}
	if v.shards == 0 {
		return !f.apiOnly
	}
	return slices.Contains(f.shards, v.shards)
}

// build builds a package of the module in a folder, which lies below the root of this
// one, and returns the binary's path in dir.
func build(ctx context.Context, dir, name, module, pkg string) (binary string, err error) {
	find := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/latchkey-db/latchkey")
	root, err := find.Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	binary = filepath.Join(dir, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-o", binary, pkg)
	cmd.Dir = filepath.Join(strings.TrimSpace(string(root)), module)
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, text)
	}
	return binary, nil
}

// buildServers builds what is measured unless something else is named.
func buildServers(ctx context.Context, dir string) ([]server, error) {
	etcd, err := build(ctx, dir, "etcd", "bench/peers", "go.etcd.io/etcd/server/v3")
	if err != nil {
		return nil, err
	}
	latchkey, err := build(ctx, dir, "latchkey", ".", "./cmd/latchkey")
	if err != nil {
		return nil, err
	}
	return []server{
		{name: "etcd", command: []string{etcd}},
		{name: "latchkey", command: []string{latchkey, "--initial-splits", "{}"}},
	}, nil
}
