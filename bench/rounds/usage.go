package main

import (
	"context"
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
	// syncs is how often each node has made its logs durable, of nodes that tell, rss what
	// each holds in memory, in MiB.
	syncs, rss []float64
}

// used returns what the servers have used, and the given clients.
func (r running) used(ctx context.Context, clients ...int) (u usage, err error) {
	for _, n := range r.nodes {
		used, err := cpu(n.pid)
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
	for _, n := range r.nodes {
		held, err := rss(n.pid)
		if err != nil {
			return u, err
		}
		u.rss = append(u.rss, held)
		if n.syncs == nil {
			continue
		}
		synced, err := n.syncs(ctx)
		if err != nil {
			return u, err
		}
		u.syncs = append(u.syncs, synced)
	}
	return u, nil
}

// add adds what the servers used for some operations to values.
func (r running) add(values map[string]float64, began, ended usage, ops float64) {
	count := float64(len(r.nodes))
	values[serverCPU] = float64((ended.servers - began.servers).Microseconds()) / ops
	for i, n := range r.nodes {
		values[memory] += ended.rss[i] / count
		if n.syncs != nil {
			synced := (ended.syncs[i] - began.syncs[i]) / ops
			values[syncs] += synced / count
			values["log fsyncs/op, "+n.name] = synced
		}
	}
}

// grown returns how much more memory each node holds at the end, in MiB.
func grown(began, ended usage) (mib float64) {
	for i := range ended.rss {
		mib += (ended.rss[i] - began.rss[i]) / float64(len(ended.rss))
	}
	return mib
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
