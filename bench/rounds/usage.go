package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// usage is what has been used up to a moment.
type usage struct {
	servers, clients time.Duration
	// syncs is how often each node has written its Raft logs and made them durable, rss
	// what each holds in memory, in MiB.
	syncs, rss []float64
}

// used returns what the servers have used, and the given clients.
func (r running) used(ctx context.Context, clients ...int) (u usage, err error) {
	for _, n := range r.Nodes {
		used, err := cpu(n.PID())
		if err != nil {
			return u, err
		}
		u.servers += used
	}
	for _, pid := range clients {
		used, err := cpu(pid)
		if err != nil {
			return u, err
		}
		u.clients += used
	}
	for _, n := range r.Nodes {
		synced, err := patiently(func() (float64, error) { return n.Metric(ctx, "etcd_disk_wal_fsync_duration_seconds_count") })
		if err != nil {
			return u, err
		}
		held, err := rss(n.PID())
		if err != nil {
			return u, err
		}
		u.syncs, u.rss = append(u.syncs, synced), append(u.rss, held)
	}
	return u, nil
}

// add adds what the servers used for some operations to values.
func (r running) add(values map[string]float64, began, ended usage, ops float64) {
	nodes := float64(len(r.Nodes))
	values[serverCPU] = float64((ended.servers - began.servers).Microseconds()) / ops
	for i, n := range r.Nodes {
		synced := (ended.syncs[i] - began.syncs[i]) / ops
		values[syncs] += synced / nodes
		values["log fsyncs/op, "+n.Name] = synced
		values[memory] += ended.rss[i] / nodes
	}
}

// patiently asks a node that is busy more often than once.
func patiently(ask func() (float64, error)) (v float64, err error) {
	for range 10 {
		if v, err = ask(); !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	return v, err
}

// cpu returns the CPU time that a process has used.
func cpu(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStat(string(text))
}

// parseStat returns the time in user and in kernel mode that Linux tells of a process.
func parseStat(text string) (sum time.Duration, err error) {
	// Linux counts in hundredths of a second.
	const tick = 10 * time.Millisecond
	// The fields behind the name, which is in parentheses, begin with the third.
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	const user, kernel = 14 - 3, 15 - 3
	if len(fields) <= kernel {
		return 0, fmt.Errorf("no CPU time in %q", text)
	}
	for _, i := range []int{user, kernel} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// rss returns the memory that a process holds, in MiB.
func rss(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseFloat(strings.Fields(string(text))[1], 64)
	return pages * float64(syscall.Getpagesize()) / (1 << 20), err
}
