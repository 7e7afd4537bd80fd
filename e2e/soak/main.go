// Command soak breaks a cluster, of three nodes unless told otherwise, for as long as asked and ends with a line
// that says what it did and found:
//
//	go run ./e2e/soak -for 30m -seed 1 -shards 1 -nodes 3
//
// As root it gives each node a network namespace and cuts links too, and a file system that
// it breaks. Faults that the machine does not allow are left out by name. It exits with 1
// if a promise was broken.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/latchkey-db/latchkey/e2e/faults"
)

// errBroken is returned for a run that found something.
var errBroken = errors.New("promises were broken")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	switch {
	case err == nil:
	case errors.Is(err, errBroken):
		os.Exit(1)
	default:
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(os.Stderr, "soak: %v\n", err)
		}
		os.Exit(2)
	}
}

// options are the command line.
type options struct {
	duration      time.Duration
	seed          uint64
	shards, nodes int
	longest, rest time.Duration
	binary, dir   string
	kinds         string
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	var o options
	f := flag.NewFlagSet("soak", flag.ContinueOnError)
	f.DurationVar(&o.duration, "for", time.Minute, "how long to break things")
	f.Uint64Var(&o.seed, "seed", 1, "what the faults are drawn from")
	f.IntVar(&o.shards, "shards", 1, "`number` of data shards, up to 26")
	f.IntVar(&o.nodes, "nodes", 3, "`number` of nodes")
	f.DurationVar(&o.longest, "longest", 15*time.Second, "how long a fault lasts at the most")
	f.DurationVar(&o.rest, "rest", 3*time.Second, "pause between two faults")
	f.StringVar(&o.binary, "binary", "", "server to break (default: the one of this module)")
	f.StringVar(&o.dir, "dir", "", "where data and logs go and stay (default: a directory that is removed, but for the logs of a run that fails)")
	f.StringVar(&o.kinds, "faults", "", "comma-separated `kinds` of faults (default: all): "+strings.Join(faults.Kinds(), ", "))
	if err := f.Parse(args); err != nil {
		return err
	}
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "latchkey-soak-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, tidy(o.dir, err != nil, out)) }()
	}
	if o.binary == "" {
		o.binary = filepath.Join(o.dir, "latchkey")
		build := exec.CommandContext(ctx, "go", "build", "-o", o.binary, "github.com/latchkey-db/latchkey/cmd/latchkey")
		if text, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build server: %w: %s", err, text)
		}
	}
	return soak(ctx, o, out)
}

// tidy removes what a run has left in a directory of its own. It leaves the nodes' logs of one that failed, and says where.
func tidy(dir string, failed bool, out io.Writer) error {
	if !failed {
		return os.RemoveAll(dir)
	}
	left, err := os.ReadDir(dir)
	for _, e := range left {
		if filepath.Ext(e.Name()) != ".log" {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	_, werr := fmt.Fprintln(out, "logs of the nodes are in", dir)
	return errors.Join(err, werr)
}

// errNoFault is returned where the machine allows none of the faults asked for.
var errNoFault = errors.New("no fault is left")

// choose returns the kinds of faults of a run and tells which were left out.
func choose(o options, out io.Writer) (kinds []string, err error) {
	if o.kinds != "" {
		kinds = strings.Split(o.kinds, ",")
	}
	kinds, left, err := faults.Choose(kinds)
	if err != nil {
		return nil, err
	}
	if len(left) > 0 {
		if _, err := fmt.Fprintf(out, "left out: %s\n", strings.Join(left, ", ")); err != nil {
			return nil, err
		}
	}
	if len(kinds) == 0 {
		return nil, errNoFault
	}
	return kinds, nil
}

func soak(ctx context.Context, o options, out io.Writer) (err error) {
	kinds, err := choose(o, out)
	if err != nil {
		return err
	}
	n := &faults.Nemesis{Report: &faults.Report{}, Kinds: kinds, Longest: o.longest, Rest: o.rest}
	layout := faults.Options{Binary: o.binary, Nodes: o.nodes, Later: 1, Dir: o.dir}
	if splits := faults.Splits(o.shards); splits != "" {
		layout.Args = []string{"--initial-splits", splits}
	}
	if n.Gear, err = faults.NewGear(kinds, layout.Nodes+layout.Later, o.dir); err != nil {
		return err
	}
	layout.Network, layout.Disks = n.Gear.Network, n.Gear.Disks
	defer func() { err = errors.Join(err, n.Gear.Close()) }()
	if n.Cluster, err = faults.New(layout); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Cluster.Close()) }()
	start, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := n.Cluster.Start(start); err != nil {
		return err
	}
	clients, done, err := faults.DialEach(n.Cluster)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	sets := faults.NewLockSet(n.Report, o.seed, clients)
	err = faults.Run(ctx, n, o.seed, clients, o.duration, append(faults.Wide(n.Report, o.seed, clients),
		faults.NewChains(n.Report, 12, clients), faults.NewRegisters(n.Report, o.seed, clients),
		faults.NewLeases(n.Report, 6, 10, 25*time.Second+o.longest, clients), sets)...)
	if err == nil && o.shards > 1 {
		faults.CheckSettled(ctx, n.Report, n.Cluster)
	}
	var text strings.Builder
	for _, v := range n.Report.Violations() {
		fmt.Fprintln(&text, "violation:", v)
	}
	fmt.Fprintf(&text, "lost behind unchecked tokens: %d\n", sets.Lost)
	fmt.Fprintf(&text, "operations=%d faults=%v violations=%d\n", n.Report.Operations.Load(), n.Report.Faults(), len(n.Report.Violations()))
	if _, werr := io.WriteString(out, text.String()); werr != nil {
		return errors.Join(err, werr)
	}
	if err == nil && len(n.Report.Violations()) > 0 {
		err = errBroken
	}
	return err
}
