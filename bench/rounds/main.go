// Command rounds measures servers against each other: it starts each of them in turn,
// has bench work on it, and stops it, round after round, so that what else the machine
// does falls on all of them alike.
//
//	go run ./bench/rounds -results bench
//	go run ./bench/rounds -rounds 3 -for 1s -only 'put-*,lock-1'
//	go run ./bench/rounds -work put,get -nodes 3 -clients 512 -shards 1,4 \
//	    'etcd=/tmp/etcd' 'latchkey=latchkey --initial-splits {}'
//
// Each argument is a name and a command that takes etcd's flags; names, directories and
// addresses are added to it, for each node. {} stands for the splits that lay the keys of
// bench on shards evenly, on as many as the figure asks for; {4} for those of four shards.
// Without arguments etcd, of bench/peers, and Latchkey are built and measured, and beside
// them the locks of Redis and of ZooKeeper, where they are installed.
//
// What is measured are the figures of figures.go, or those of them that -only names, or
// with -work any kind of work of bench. Printed are, in Markdown, medians over the rounds
// and medians of the ratios to the first server in the same round. -results names a
// folder for that text with charts (RESULTS.md, charts/) and for what every round
// measured (results.json). A round that is interrupted is left out, and those before it are
// told of.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"
)

// options are the command line.
type options struct {
	rounds           int
	duration, warmup time.Duration
	results, jars    string
	groups           []group
	servers          []server
	notes            []string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
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
	f.DurationVar(&o.duration, "for", 2*time.Second, "how long each figure is measured")
	f.DurationVar(&o.warmup, "warmup", 500*time.Millisecond, "how long each work runs before")
	f.StringVar(&o.results, "results", "", "`folder` to write RESULTS.md, results.json and charts to")
	f.StringVar(&o.jars, "jars", "/usr/share/java", "`folder` with Debian's packages of ZooKeeper")
	only := f.String("only", "", "comma-separated `patterns` of the keys of figures to measure, such as put-*; an unknown one lists them")
	works := f.String("work", "", "comma-separated kinds of `work` to measure instead of the figures")
	nodes := f.Int("nodes", 1, "`number` of nodes of each server, for -work")
	clients := f.Int("clients", 64, "`number` of clients, for -work")
	shards := f.String("shards", "1", "comma-separated `numbers` of shards, for -work")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.rounds < 1 || *nodes < 1 || *clients < 1 || o.duration <= 0 || o.warmup < 0 {
		return o, errors.New("rounds, nodes, clients and for must be positive")
	}
	o.groups = figures
	if *works != "" {
		numbers, err := integers(*shards)
		if err != nil {
			return o, err
		}
		o.groups = []group{adhoc(strings.Split(*works, ","), *nodes, *clients, numbers)}
	}
	var err error
	if o.groups, err = choose(o.groups, *only); err != nil {
		return o, err
	}
	for _, arg := range f.Args() {
		name, command, ok := strings.Cut(arg, "=")
		if !ok || command == "" {
			return o, fmt.Errorf("%q is not name=command", arg)
		}
		if slices.ContainsFunc(o.servers, func(s server) bool { return s.name == name }) {
			return o, fmt.Errorf("%q is there twice", name)
		}
		o.servers = append(o.servers, server{name: name, command: strings.Fields(command)})
	}
	return o, nil
}

func integers(text string) (numbers []int, err error) {
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a number of shards", word)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

// run measures. What fails is told at the end; the rest is printed all the same.
func run(ctx context.Context, args []string, out, progress io.Writer) (err error) {
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "latchkey-rounds-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	driver, err := build(ctx, dir, "bench", ".", "./bench")
	if err != nil {
		return err
	}
	if len(o.servers) == 0 {
		if o.servers, err = buildServers(ctx, dir); err != nil {
			return err
		}
		rivals, notes := installed(o.jars)
		o.servers, o.notes = append(o.servers, rivals...), notes
	}
	r := report{Date: time.Now().UTC(), Seconds: o.duration.Seconds()}
	r.setMachine()
	b := bench{options: o, driver: driver, dir: dir}
	for r.Rounds < o.rounds {
		samples, err := b.round(ctx, r.Rounds, progress)
		if err != nil && r.Rounds == 0 {
			return err
		}
		if err != nil {
			o.notes = append(o.notes, fmt.Sprintf("of %d rounds %d were finished: %v", o.rounds, r.Rounds, err))
			break
		}
		r.Samples = append(r.Samples, samples...)
		r.Rounds++
	}
	p := page{report: r, groups: o.groups, servers: o.servers, notes: o.notes}
	if _, err := io.WriteString(out, p.markdown("")); err != nil {
		return err
	}
	if o.results != "" {
		if err := p.write(o.results); err != nil {
			return err
		}
	}
	return r.failures()
}
