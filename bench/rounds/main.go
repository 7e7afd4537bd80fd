// Command rounds measures servers against each other: it starts each of them in turn,
// has bench work on it, and stops it, round after round, so that what else the machine
// does falls on all of them alike.
//
//	go run ./bench/rounds -rounds 5 -work put,get,lock \
//	    'etcd=/tmp/etcd' 'one=latchkey' 'four=latchkey --initial-splits {4}'
//
// Each argument is a name and a command that takes etcd's flags; names, directories
// and addresses are added to it, for each of -nodes nodes. {4} stands for the splits
// that lay the keys of bench on four shards evenly. Printed are, for each work and
// server, the medians over the rounds of operations a second, of the 50th and 99th
// percentile, of the servers' and the clients' CPU time and of the logs' fsyncs for an
// operation; what the servers used while idle; and the ratio of each to the first
// server's, the median over the rounds.
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
	"strconv"
	"strings"
	"time"
)

// options are the command line.
type options struct {
	rounds, nodes, clients int
	works                  []string
	duration, idle         time.Duration
	servers                []server
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(os.Stderr, "rounds: %v\n", err)
		}
		os.Exit(2)
	}
}

func parse(args []string, out io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("rounds", flag.ContinueOnError)
	f.SetOutput(out)
	f.IntVar(&o.rounds, "rounds", 5, "`number` of rounds")
	f.IntVar(&o.nodes, "nodes", 1, "`number` of nodes of each server")
	f.IntVar(&o.clients, "clients", 64, "`number` of clients")
	works := f.String("work", "put,get,lock", "comma-separated kinds of `work`")
	f.DurationVar(&o.duration, "for", 3*time.Second, "how long each work takes")
	f.DurationVar(&o.idle, "idle", 2*time.Second, "how long to measure the idle server")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.works = strings.Split(*works, ",")
	for _, arg := range f.Args() {
		name, command, ok := strings.Cut(arg, "=")
		if !ok || command == "" {
			return o, fmt.Errorf("%q is not name=command", arg)
		}
		o.servers = append(o.servers, server{name: name, command: strings.Fields(withSplits(command))})
	}
	if len(o.servers) == 0 || o.rounds < 1 || o.nodes < 1 {
		return o, errors.New("servers, rounds and nodes are needed; -h says how")
	}
	return o, nil
}

// withSplits puts splits in the place of {n}.
func withSplits(command string) string {
	before, rest, ok := strings.Cut(command, "{")
	number, after, closed := strings.Cut(rest, "}")
	n, err := strconv.Atoi(number)
	if !ok || !closed || err != nil {
		return command
	}
	var splits []string
	for i := 1; i < n; i++ {
		splits = append(splits, fmt.Sprintf("bench/%02x/", i*256/n))
	}
	return before + strings.Join(splits, ",") + after
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "latchkey-rounds-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	driver := filepath.Join(dir, "bench")
	build := exec.CommandContext(ctx, "go", "build", "-o", driver, "github.com/latchkey-db/latchkey/bench")
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build bench: %w: %s", err, text)
	}
	var t table
	for round := range o.rounds {
		for _, s := range o.servers {
			if err := s.measure(ctx, o, driver, filepath.Join(dir, s.name), &t); err != nil {
				return fmt.Errorf("%s in round %d: %w", s.name, round, err)
			}
		}
	}
	return t.print(out, o)
}
