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
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/latchkey-db/latchkey/e2e/faults"
)

// server is one command to measure.
type server struct {
	name    string
	command []string
}

// running is the processes of a server.
type running struct {
	*faults.Cluster
}

// startTimeout bounds the start of all nodes of a server.
const startTimeout = time.Minute

// measure starts the server on empty directories, measures every work once and stops it.
func (s server) measure(ctx context.Context, o options, driver, dir string, t *table) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	c, err := faults.New(faults.Options{Binary: s.command[0], Args: s.command[1:], Nodes: o.nodes, Dir: dir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(), os.RemoveAll(dir)) }()
	start, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.Start(start); err != nil {
		return err
	}
	r := running{c}
	if err := r.idle(ctx, o.idle, func(metric string, v float64) { t.add("idle", metric, s.name, v) }); err != nil {
		return err
	}
	for _, work := range o.works {
		add := func(metric string, v float64) { t.add(work, metric, s.name, v) }
		if err := r.work(ctx, o, driver, work, add); err != nil {
			return fmt.Errorf("%s: %w", work, err)
		}
	}
	return nil
}

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

// idle measures what the server uses while nobody asks it anything, for each node.
func (r running) idle(ctx context.Context, d time.Duration, add func(metric string, v float64)) error {
	before, err := r.cpu()
	if err != nil {
		return err
	}
	if err := pause(ctx, d); err != nil {
		return err
	}
	after, err := r.cpu()
	if err != nil {
		return err
	}
	nodes := float64(len(r.Nodes))
	add("CPU, % of a core", (after-before).Seconds()/d.Seconds()/nodes*100)
	rss, err := r.rss()
	add("memory, MiB", rss/nodes)
	return err
}

// report is what bench prints.
var report = regexp.MustCompile(`ops=(\d+) ops/s=(\d+) p50=(\S+) p99=(\S+) `)

// work has bench do one kind of work.
func (r running) work(ctx context.Context, o options, driver, work string, add func(metric string, v float64)) error {
	const warmup = time.Second
	cmd := exec.CommandContext(ctx, driver, "-endpoints", strings.Join(r.Endpoints(), ","), "-work", work,
		"-clients", strconv.Itoa(o.clients), "-conns", strconv.Itoa(8*len(r.Nodes)), "-for", o.duration.String(), "-warmup", warmup.String())
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	if err := cmd.Start(); err != nil {
		return err
	}
	text, began, err := r.follow(ctx, cmd.Process.Pid, out)
	if failed := cmd.Wait(); failed != nil {
		return fmt.Errorf("%w: %s", failed, complaint.Bytes())
	}
	if err != nil {
		return err
	}
	ended, err := r.used(ctx)
	if err != nil {
		return err
	}
	m := report.FindStringSubmatch(text)
	if m == nil {
		return fmt.Errorf("bench printed %q", text)
	}
	rate, err := strconv.ParseFloat(m[2], 64)
	if err != nil {
		return err
	}
	add("operations/s", rate)
	for i, metric := range []string{"p50, ms", "p99, ms"} {
		d, err := time.ParseDuration(m[3+i])
		if err != nil {
			return err
		}
		add(metric, d.Seconds()*1000)
	}
	ops := rate * o.duration.Seconds()
	add("server CPU, us/op", float64((ended.servers-began.servers).Microseconds())/ops)
	clients := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime() - began.clients
	add("client CPU, us/op", float64(clients.Microseconds())/ops)
	add("log fsyncs/op", (ended.syncs-began.syncs)/ops)
	rss, err := r.rss()
	add("memory, MiB", rss/float64(len(r.Nodes)))
	return err
}

// usage is what has been used up to a moment.
type usage struct {
	servers, clients time.Duration
	syncs            float64
}

// used returns what the servers have used, and the given clients.
func (r running) used(ctx context.Context, clients ...int) (u usage, err error) {
	if u.servers, err = r.cpu(); err != nil {
		return u, err
	}
	if u.clients, err = cpu(clients...); err != nil {
		return u, err
	}
	u.syncs, err = r.syncs(ctx)
	return u, err
}

// follow reads what bench, which is process pid, prints, and returns it with what was
// used up to when bench began to measure.
func (r running) follow(ctx context.Context, pid int, out io.Reader) (text string, began usage, err error) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if text = lines.Text(); text == "measuring" && err == nil {
			began, err = r.used(ctx, pid)
		}
	}
	return text, began, errors.Join(err, lines.Err())
}

// syncs returns how often the nodes have written their Raft logs and made them durable.
func (r running) syncs(ctx context.Context) (sum float64, err error) {
	for _, n := range r.Nodes {
		v, err := patiently(func() (float64, error) { return n.Metric(ctx, "etcd_disk_wal_fsync_duration_seconds_count") })
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
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

// cpu returns the CPU time that the servers have used.
func (r running) cpu() (time.Duration, error) {
	pids := make([]int, 0, len(r.Nodes))
	for _, n := range r.Nodes {
		pids = append(pids, n.PID())
	}
	return cpu(pids...)
}

// cpu returns the CPU time that processes have used.
func cpu(pids ...int) (time.Duration, error) {
	// Linux counts in hundredths of a second.
	const tick = 10 * time.Millisecond
	var sum time.Duration
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		// The fields behind the name, which is in parentheses, begin with the third.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		for _, i := range []int{14 - 3, 15 - 3} {
			n, err := strconv.ParseInt(fields[i], 10, 64)
			if err != nil {
				return 0, err
			}
			sum += time.Duration(n) * tick
		}
	}
	return sum, nil
}

// rss returns the memory that the processes hold, in MiB.
func (r running) rss() (float64, error) {
	sum := 0.0
	for _, p := range r.Nodes {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.PID()))
		if err != nil {
			return 0, err
		}
		pages, err := strconv.ParseFloat(strings.Fields(string(text))[1], 64)
		if err != nil {
			return 0, err
		}
		sum += pages * float64(syscall.Getpagesize()) / (1 << 20)
	}
	return sum, nil
}
