package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// patience bounds a figure, with what it prepares, beyond what it measures.
	patience = 5 * time.Minute
	// connections is how many the clients share for each node.
	connections = 8
)

// bench measures figures.
type bench struct {
	options
	// driver is the binary of bench, dir a folder that has all binaries.
	driver, dir string
}

// round measures all groups once.
func (b bench) round(ctx context.Context, round int, progress io.Writer) (samples []sample, err error) {
	for _, g := range b.groups {
		if _, err := fmt.Fprintf(progress, "round %d of %d: %s\n", round+1, b.rounds, g.title); err != nil {
			return nil, err
		}
		variants := g.variants(b.servers)
		// What warms the machine up or tires it falls on the first as often as on the last.
		if round%2 == 1 {
			slices.Reverse(variants)
		}
		for _, v := range variants {
			samples = append(samples, b.measure(ctx, g, v, round)...)
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
	}
	return samples, nil
}

// measure starts a variant on empty directories, measures a group's figures on it and
// stops it.
func (b bench) measure(ctx context.Context, g group, v variant, round int) (samples []sample) {
	dir := filepath.Join(b.dir, "nodes")
	nodes := g.nodes
	add := func(f figure, values map[string]float64, err error) {
		s := sample{Figure: f.key, Server: v.name(), Nodes: nodes, Shards: v.shards, Round: round, Values: values}
		if err != nil {
			s.Failed, s.Values = err.Error(), nil
		}
		samples = append(samples, s)
	}
	r, err := v.start(ctx, g.nodes, dir)
	if err == nil {
		nodes = len(r.nodes)
	}
	for _, f := range g.figures {
		if !f.measuredWith(v) {
			continue
		}
		if err != nil {
			add(f, nil, err)
			continue
		}
		if f.api != "" && v.server.name != b.servers[0].name {
			r.store = f.api
		}
		values, failed := b.figure(ctx, r, f)
		add(f, values, failed)
	}
	if err == nil {
		err = r.close()
	}
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil && len(samples) > 0 {
		samples[0].Failed = err.Error()
	}
	return samples
}

// figure measures one figure.
func (b bench) figure(ctx context.Context, r running, f figure) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, b.warmup+b.duration+patience)
	defer cancel()
	if f.work == nil {
		return r.idle(ctx, b.duration)
	}
	length, warmup := b.duration, b.warmup
	if f.counted {
		length, warmup = patience, 0
	}
	args := append([]string{
		"-store", r.store, "-endpoints", strings.Join(r.endpoints, ","), "-conns", strconv.Itoa(connections * len(r.nodes)),
		"-for", length.String(), "-warmup", warmup.String(),
	}, f.work...)
	return r.drive(ctx, b.driver, args, f)
}

// idle measures what the server uses while nobody asks it anything.
func (r running) idle(ctx context.Context, d time.Duration) (map[string]float64, error) {
	began, err := r.used(ctx)
	if err != nil {
		return nil, err
	}
	if err := pause(ctx, d); err != nil {
		return nil, err
	}
	ended, err := r.used(ctx)
	if err != nil {
		return nil, err
	}
	values := make(map[string]float64)
	r.add(values, began, ended, d.Seconds())
	return values, nil
}

// drive has bench do the work of a figure.
func (r running) drive(ctx context.Context, driver string, args []string, f figure) (map[string]float64, error) {
	before, err := r.used(ctx)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, driver, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	text, began, err := r.follow(ctx, cmd.Process.Pid, out)
	if failed := cmd.Wait(); failed != nil {
		return nil, fmt.Errorf("bench: %w: %s", failed, bytes.TrimSpace(complaint.Bytes()))
	}
	if err != nil {
		return nil, err
	}
	ended, err := r.used(ctx)
	if err != nil {
		return nil, err
	}
	ops, values, err := parseReport(text)
	if err != nil {
		return nil, err
	}
	r.add(values, began, ended, ops)
	if f.counted {
		with := ended
		if f.prepared {
			with = began
		}
		values[ofEach] = grown(before, with) / ops * 1024
	}
	clients := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime() - began.clients
	values[clientCPU] = float64(clients.Microseconds()) / ops
	return values, nil
}

// line is what bench prints at its end.
var line = regexp.MustCompile(`ops=(\d+) ops/s=(\d+) p50=(\S+) p99=(\S+) `)

// parseReport returns how many operations bench did and what it says of them.
func parseReport(text string) (ops float64, values map[string]float64, err error) {
	m := line.FindStringSubmatch(text)
	if m == nil {
		return 0, nil, fmt.Errorf("bench printed %q", text)
	}
	values = make(map[string]float64)
	if ops, err = strconv.ParseFloat(m[1], 64); err != nil {
		return 0, nil, err
	}
	if values[rate], err = strconv.ParseFloat(m[2], 64); err != nil {
		return 0, nil, err
	}
	for i, metric := range []string{p50, p99} {
		d, err := time.ParseDuration(m[3+i])
		if err != nil {
			return 0, nil, err
		}
		values[metric] = d.Seconds() * 1000
	}
	return ops, values, nil
}

// follow reads what bench, which is process pid, prints, and returns its last line with
// what was used up to when it began to measure.
func (r running) follow(ctx context.Context, pid int, out io.Reader) (text string, began usage, err error) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if text = lines.Text(); text == "measuring" && err == nil {
			began, err = r.used(ctx, pid)
		}
	}
	return text, began, errors.Join(err, lines.Err())
}
