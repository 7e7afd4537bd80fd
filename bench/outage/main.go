// Command outage measures for how long clients can't write when a node of three that
// leads is lost: it starts each server in turn, has clients write every 10 ms through all
// nodes, takes the leader away and tells the longest time between two writes of a client
// that were acknowledged. Every server has as many clients, one for each shard of the one
// with the most; their keys lie on all shards.
//
//	go run ./bench/outage -rounds 20 'etcd=/tmp/etcd' 'one=latchkey' '16=latchkey --initial-splits {16}'
//
// The leader is killed, suspended, cut off (as root, in network namespaces of its own)
// or asked to stop. With -ways holder a client that holds a lock, with a lease of 5 s, is
// taken away instead, and the time until the next one has the lock is told. With -ways none
// nothing is taken away: so long are the gaps that come of the load alone.
//
// Printed are, for each way and server, the median and the 90th percentile over the
// rounds, how many of the clients were hit, and the ratio of the medians to the first
// server's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/latchkey-db/latchkey/e2e/faults"
)

// options are the command line.
type options struct {
	rounds  int
	ways    []string
	servers []server
	// clients is how many write at a time.
	clients int
}

// server is one command to measure.
type server struct {
	name, binary string
	args         []string
	// shards is how many data shards the command gives it.
	shards int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(os.Stderr, "outage: %v\n", err)
		}
		os.Exit(2)
	}
}

func parse(args []string, out io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("outage", flag.ContinueOnError)
	f.SetOutput(out)
	f.IntVar(&o.rounds, "rounds", 20, "`number` of rounds")
	ways := f.String("ways", "kill,freeze,isolate,stop", "comma-separated `ways` to lose the leader; or holder, or none")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.ways = strings.Split(*ways, ",")
	for _, arg := range f.Args() {
		name, command, ok := strings.Cut(arg, "=")
		s := server{name: name, shards: 1}
		before, rest, splits := strings.Cut(command, "{")
		if splits {
			number, after, _ := strings.Cut(rest, "}")
			n, err := strconv.Atoi(number)
			if err != nil || n < 1 || n > 26 {
				return o, fmt.Errorf("%q: between the braces is a number of shards up to 26", arg)
			}
			s.shards, command = n, before+faults.Splits(n)+after
		}
		words := strings.Fields(command)
		if !ok || len(words) == 0 {
			return o, fmt.Errorf("%q is not name=command", arg)
		}
		s.binary, s.args = words[0], words[1:]
		o.servers = append(o.servers, s)
		o.clients = max(o.clients, s.shards)
	}
	if len(o.servers) == 0 || o.rounds < 1 {
		return o, errors.New("servers and rounds are needed; -h says how")
	}
	return o, nil
}

// outcome is what one round saw of one server and way.
type outcome struct {
	longest time.Duration
	hit     int
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "latchkey-outage-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	seen := make(map[string][]outcome)
	for round := range o.rounds {
		for _, way := range o.ways {
			for _, s := range o.servers {
				got, err := s.lose(ctx, way, filepath.Join(dir, s.name), o.clients)
				if err != nil {
					return fmt.Errorf("%s of %s in round %d: %w", way, s.name, round+1, err)
				}
				seen[way+s.name] = append(seen[way+s.name], got)
			}
		}
	}
	_, err = io.WriteString(out, table(o, seen))
	return err
}

// table is a line for each way and server.
func table(o options, seen map[string][]outcome) string {
	var b strings.Builder
	for _, way := range o.ways {
		base := quantile(seen[way+o.servers[0].name], 0.5)
		for _, s := range o.servers {
			got := seen[way+s.name]
			hit := 0
			for _, g := range got {
				hit += g.hit
			}
			median := quantile(got, 0.5)
			fmt.Fprintf(&b, "%-8s %-10s median=%v p90=%v hit=%.1f of %d ratio=%.2f\n", way, s.name,
				median.Round(time.Millisecond), quantile(got, 0.9).Round(time.Millisecond),
				float64(hit)/float64(len(got)), o.clients, median.Seconds()/base.Seconds())
		}
	}
	return b.String()
}

func quantile(got []outcome, q float64) time.Duration {
	sorted := make([]time.Duration, 0, len(got))
	for _, g := range got {
		sorted = append(sorted, g.longest)
	}
	slices.Sort(sorted)
	return sorted[int(q*float64(len(sorted)-1))]
}
