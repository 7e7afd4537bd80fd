// Command soak breaks a cluster of three nodes for as long as asked and ends with a line
// that says what it did and found:
//
//	go run ./e2e/soak -for 30m -seed 1 -shards 1
//
// As root it gives each node a network namespace and cuts links too. It exits with 1 if a
// promise was broken.
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
	"time"

	"github.com/latchkey-db/latchkey/e2e/faults"
)

// errBroken is returned for a run that found something.
var errBroken = errors.New("promises were broken")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
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
	duration        time.Duration
	seed            uint64
	shards          int
	longest, rest   time.Duration
	binary, dir     string
	kinds           string
	withoutNetworks bool
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	var o options
	f := flag.NewFlagSet("soak", flag.ContinueOnError)
	f.DurationVar(&o.duration, "for", time.Minute, "how long to break things")
	f.Uint64Var(&o.seed, "seed", 1, "what the faults are drawn from")
	f.IntVar(&o.shards, "shards", 1, "`number` of data shards, up to 26")
	f.DurationVar(&o.longest, "longest", 15*time.Second, "how long a fault lasts at the most")
	f.DurationVar(&o.rest, "rest", 3*time.Second, "pause between two faults")
	f.StringVar(&o.binary, "binary", "", "server to break (default: the one of this module)")
	f.StringVar(&o.dir, "dir", "", "where data and logs go and stay (default: a directory that is removed)")
	f.StringVar(&o.kinds, "faults", "", "comma-separated kinds of faults (default: all)")
	f.BoolVar(&o.withoutNetworks, "loopback", false, "cut no links; needs no root")
	if err := f.Parse(args); err != nil {
		return err
	}
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "latchkey-soak-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
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

func soak(ctx context.Context, o options, out io.Writer) (err error) {
	n := &faults.Nemesis{Report: &faults.Report{}, Longest: o.longest, Rest: o.rest}
	if o.kinds != "" {
		n.Kinds = strings.Split(o.kinds, ",")
	}
	layout := faults.Options{Binary: o.binary, Nodes: 3, Dir: o.dir}
	if splits := faults.Splits(o.shards); splits != "" {
		layout.Args = []string{"--initial-splits", splits}
	}
	if !o.withoutNetworks {
		if n.Network, err = faults.NewNetwork(layout.Nodes); err != nil {
			return err
		}
		layout.Network = n.Network
		defer func() { err = errors.Join(err, n.Network.Close()) }()
	}
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
	err = faults.Run(ctx, n, o.seed, clients, o.duration,
		faults.NewChains(n.Report, 12, clients), faults.NewRegisters(n.Report, o.seed, clients),
		faults.NewLeases(n.Report, 6, 10, 25*time.Second+o.longest, clients), sets)
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
