package main

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// The metrics of a figure, in the order in which they are printed.
const (
	rate      = "operations/s"
	p50       = "p50, ms"
	p99       = "p99, ms"
	serverCPU = "server CPU, us/op"
	syncs     = "log fsyncs/op and node"
	clientCPU = "client CPU, us/op"
	memory    = "memory, MiB/node"
	ofEach    = "memory of each, KiB/node"
)

var metrics = []string{rate, p50, p99, serverCPU, syncs, clientCPU, memory, ofEach}

// better reports whether a reaches b, or is better.
func better(metric string, a, b float64) bool {
	if metric == rate {
		return a >= b
	}
	return a <= b
}

// group is figures that are measured one after the other on the same processes.
type group struct {
	title   string
	nodes   int
	figures []figure
}

// metrics are those that are printed: the memory of each only where something is counted.
func (g group) metrics() []string {
	if slices.ContainsFunc(g.figures, func(f figure) bool { return f.counted }) {
		return metrics
	}
	return metrics[:len(metrics)-1]
}

// figure is one kind of work, with what is asked of it.
type figure struct {
	key, title string
	// work is the flags of bench. None leave the servers idle, and then an operation is a
	// second that passes.
	work []string
	// shards are the numbers of shards that it is measured with, where a server has a choice.
	shards []int
	// metric is the one that matters.
	metric string
	// counted says that the work ends when it is done, rather than after some time.
	counted bool
	// prepared says that what it counts is there before it is measured, so that the memory of each is
	// that which the servers have more by then.
	prepared bool
	// api is the protocol of the lock API by which locks are taken of all servers but the first,
	// to which concurrency.Mutex is left; empty for the same with all.
	api string
	// apiOnly leaves servers out that have no choice of shards, and so are not Latchkey.
	apiOnly bool
	goals   []goal
}

// locks reports whether the work is of locks, as any store has them.
func (f figure) locks() bool {
	return f.api == "" && len(f.work) > 1 && (f.work[1] == "lock" || f.work[1] == "handoff")
}

// goal is what a metric shall reach with some number of shards: a ratio to the first
// server, with toOne to the same server with one shard, or as it is with absolute.
type goal struct {
	metric          string
	shards          int
	toOne, absolute bool
	// to is the key of another figure of the same servers, with as many shards, that the ratio is to.
	to        string
	must, aim float64
}

// work returns the flags of bench for a kind of work.
func work(name string, clients int, flags ...string) []string {
	return append([]string{"-work", name, "-clients", strconv.Itoa(clients)}, flags...)
}

// divided are the goals of dividing the keys, compared with leaving them together.
func divided(metric string, must, aim float64) []goal {
	return []goal{{metric: metric, shards: 4, toOne: true, must: must, aim: aim}, {metric: metric, shards: 16, toOne: true, must: must, aim: aim}}
}

var (
	one     = []int{1}
	sixteen = []int{1, 16}
	each    = []int{1, 4, 16}
)

// figures is all that is measured.
var figures = []group{
	{title: "Three nodes, few clients", nodes: 3, figures: []figure{
		{key: "idle", title: "idle (an operation is a second)", shards: each, metric: serverCPU},
		{key: "put-1", title: "put, 1 client", work: work("put", 1), shards: each, metric: p50, goals: append([]goal{
			{metric: p50, shards: 1, must: 1, aim: 0.8},
			{metric: serverCPU, shards: 1, must: 1, aim: 0.8},
			{metric: syncs, shards: 1, absolute: true, must: 1, aim: 1},
		}, divided(p50, 1.15, 1.05)...)},
		{key: "put-8", title: "put, 8 clients", work: work("put", 8), shards: each, metric: p50},
		{key: "get-1", title: "get, 1 client", work: work("get", 1, "-keys", "1000"), shards: each, metric: p50},
		{key: "lock-1", title: "lock cycle, 1 client", work: work("lock", 1), shards: each, metric: p50, goals: append([]goal{
			{metric: p50, shards: 1, must: 1, aim: 0.8},
		}, divided(p50, 1.15, 1.05)...)},
		{key: "lock-8", title: "lock cycle, 8 clients", work: work("lock", 8), shards: each, metric: p50},
	}},
	{title: "Three nodes, hand-offs", nodes: 3, figures: []figure{
		{key: "handoff-64", title: "hand-off, 64 clients on 8 locks", work: work("handoff", 64, "-locks", "8"), shards: sixteen, metric: rate, goals: []goal{
			{metric: rate, shards: 1, must: 1.3, aim: 2},
		}},
		{key: "handoff-100", title: "hand-off, 100 clients on one lock", work: work("handoff", 100), shards: sixteen, metric: rate, goals: []goal{
			{metric: rate, shards: 1, must: 1.3, aim: 2},
		}},
	}},
	{title: "Three nodes, hand-offs by the lock API, of etcd by concurrency.Mutex", nodes: 3, figures: byAPI("", "")},
	{title: "Three nodes, 512 clients", nodes: 3, figures: []figure{
		{key: "put-512", title: "put, 512 clients", work: work("put", 512), shards: each, metric: rate, goals: append([]goal{
			{metric: rate, shards: 1, must: 1.6, aim: 2.2},
		}, divided(rate, 0.85, 1)...)},
		{key: "lock-512", title: "lock cycle, 512 clients", work: work("lock", 512), shards: each, metric: rate, goals: append([]goal{
			{metric: rate, shards: 1, must: 1.8, aim: 2.5},
		}, divided(rate, 0.85, 1)...)},
		{key: "get-512", title: "get, 512 clients", work: work("get", 512), shards: each, metric: rate, goals: []goal{
			{metric: rate, shards: 1, must: 1.4, aim: 1.8},
		}},
		{key: "grant-512", title: "grant, 512 clients", work: work("grant", 512), shards: sixteen, metric: rate},
		{key: "keepalive-512", title: "keepalive, a stream for each, 512 clients", work: work("keepalive", 512), shards: sixteen, metric: rate},
		{key: "renew-512", title: "keepalive on standing streams, 512 clients", work: work("renew", 512), shards: sixteen, metric: rate, goals: []goal{
			{metric: rate, shards: 1, must: 2, aim: 5},
		}},
	}},
	{title: "Three nodes, transactions over shards", nodes: 3, figures: overShards()},
	{title: "Three nodes, watches", nodes: 3, figures: []figure{
		{key: "fanout-500", title: "event of a key to 500 watches", work: work("fanout", 500), shards: sixteen, metric: p99},
		{key: "events-20", title: "event to 20 watches over everything, 200 puts/s", work: work("events", 20, "-every", "5ms"), shards: []int{1, 4, 32}, metric: p50, goals: []goal{
			{metric: p50, shards: 32, must: 3, aim: 1.5},
		}},
	}},
	{title: "One node", nodes: 1, figures: []figure{
		{key: "alone-put-1", title: "put, 1 client", work: work("put", 1), shards: sixteen, metric: p50},
		{key: "alone-put-8", title: "put, 8 clients", work: work("put", 8), shards: sixteen, metric: p50},
		{key: "bulk", title: "transactions of 100 puts of 256 bytes, 64 clients", work: work("bulk", 64, "-value", "256"), shards: one, metric: rate, goals: []goal{
			{metric: rate, shards: 1, must: 1, aim: 1.5},
		}},
	}},
	{title: "One node, hand-offs by the lock API, of etcd by concurrency.Mutex", nodes: 1, figures: byAPI("alone-", "one node, ")},
	{title: "One node, ranges, 1 client", nodes: 1, figures: ranges()},
	{title: "One node, 10,000 waiters on one lock", nodes: 1, figures: []figure{waiting("grpc"), waiting("http")}},
	{title: "One node, 100,000 held locks, of etcd by concurrency.Mutex", nodes: 1, figures: []figure{
		{key: "held", title: "100,000 locks taken by 512 clients", work: work("held", 512, "-keys", "100000"), api: "grpc", shards: one, metric: ofEach, counted: true},
		{key: "list", title: "a page of 100 of them, of etcd 100 keys", work: work("list", 1, "-limit", "100"), api: "grpc", shards: one, metric: p50},
	}},
	{title: "One node, leases", nodes: 1, figures: []figure{
		{
			key: "leases", title: "100,000 leases with a key each, 512 clients", work: work("leases", 512, "-keys", "100000"), shards: one, metric: memory, counted: true,
			goals: []goal{{metric: memory, shards: 1, must: 0.6, aim: 0.4}},
		},
	}},
}

// waiting is a lock that passes through 10,000 clients that wait for it, by a protocol of the lock API.
// Of etcd's mutex as many time out before they stand in the queue.
func waiting(api string) figure {
	return figure{
		key: "waiters-" + api, title: "10,000 waiters, by " + api, work: work("waiters", 10_001), api: api, apiOnly: true,
		shards: one, metric: ofEach, counted: true, prepared: true,
	}
}

// byAPI are hand-offs by each protocol of the lock API, with keys and titles that begin so.
func byAPI(prefix, where string) (all []figure) {
	for _, f := range []figure{
		{key: "handoff-64", title: "hand-off, 64 clients on 8 locks", work: work("handoff", 64, "-locks", "8")},
		{key: "handoff-100", title: "hand-off, 100 clients on one lock", work: work("handoff", 100)},
	} {
		for _, api := range []string{"grpc", "http", "client"} {
			all = append(all, figure{
				key: prefix + f.key + "-" + api, title: where + f.title + ", by " + api, work: f.work, api: api, shards: sixteen, metric: rate,
				goals: []goal{{metric: rate, shards: 1, must: 3, aim: 6}},
			})
		}
	}
	return all
}

// overShards are transactions of puts that lie on two and on four shards, beside single puts on the
// same servers, and these with such transactions among them. These come right behind the puts that they are compared
// with: the two differ by less than the machine does from one minute to the next.
func overShards() (all []figure) {
	shards := []int{1, 4}
	for _, clients := range []int{1, 64} {
		key := fmt.Sprintf("apart-put-%d", clients)
		all = append(all, figure{
			key: key, title: fmt.Sprintf("put, beside the following, %d clients", clients), work: work("put", clients), shards: shards, metric: p50,
		}, figure{
			key: fmt.Sprintf("apart-among-%d", clients), title: fmt.Sprintf("put with 5%% transactions over 2 shards among them, %d clients", clients),
			work: work("put", clients, "-among", "20"), shards: shards, metric: rate,
			goals: []goal{{metric: rate, shards: 4, to: key, must: 0.8, aim: 0.9}},
		})
		for _, over := range []int{2, 4} {
			all = append(all, figure{
				key: fmt.Sprintf("apart-%d-%d", over, clients), title: fmt.Sprintf("transaction over %d shards, %d clients", over, clients),
				work: work("txn", clients, "-over", strconv.Itoa(over)), shards: shards, metric: p50,
				goals: []goal{{metric: p50, shards: 4, to: key, must: 2.5, aim: 2}},
			})
		}
	}
	return all
}

// ranges are ranges of all keys that there are, and with a limit of some of 20,000.
func ranges() []figure {
	var all []figure
	for _, size := range []int{256, 1024} {
		for _, keys := range []int{400, 1000, 10_000} {
			var goals []goal
			if size == 256 && keys != 1000 {
				goals = []goal{{metric: p50, shards: 1, must: 1.2, aim: 0.8}}
			}
			all = append(all, figure{
				key: fmt.Sprintf("range-%d-%d", keys, size), title: fmt.Sprintf("range of %d keys of %d bytes", keys, size),
				work: work("range", 1, "-keys", strconv.Itoa(keys), "-value", strconv.Itoa(size)), shards: one, metric: p50, goals: goals,
			}, figure{
				key: fmt.Sprintf("limit-%d-%d", keys, size), title: fmt.Sprintf("range with limit %d of 20000 keys of %d bytes", keys, size),
				work:   work("range", 1, "-keys", "20000", "-limit", strconv.Itoa(keys), "-value", strconv.Itoa(size)),
				shards: one, metric: p50,
			})
		}
	}
	return append(all, figure{
		key: "past-500", title: "range of 500 keys of 256 bytes at a past revision",
		work: work("range", 1, "-keys", "500", "-value", "256", "-past"), shards: one, metric: p50,
		goals: []goal{{metric: p50, shards: 1, must: 1.2, aim: 0.8}},
	})
}

// adhoc is a group of any kinds of work.
func adhoc(works []string, nodes, clients int, shards []int) group {
	g := group{title: fmt.Sprintf("%d nodes, %d clients", nodes, clients), nodes: nodes}
	for _, w := range works {
		f := figure{key: w, title: w, work: work(w, clients), shards: shards, metric: rate}
		if w == "idle" {
			f.work, f.metric = nil, serverCPU
		}
		g.figures = append(g.figures, f)
	}
	return g
}

// choose returns what is left of groups when only the figures are measured whose keys
// match one of some patterns, separated by commas. None match all.
func choose(groups []group, only string) (chosen []group, err error) {
	if only == "" {
		return groups, nil
	}
	var known []string
	matched := make(map[string]bool)
	patterns := strings.Split(only, ",")
	for _, g := range groups {
		var kept []figure
		for _, f := range g.figures {
			known = append(known, f.key)
			wanted := false
			for _, p := range patterns {
				ok, err := path.Match(p, f.key)
				if err != nil {
					return nil, fmt.Errorf("pattern %q: %w", p, err)
				}
				wanted = wanted || ok
				matched[p] = matched[p] || ok
			}
			if wanted {
				kept = append(kept, f)
			}
		}
		if g.figures = kept; len(kept) > 0 {
			chosen = append(chosen, g)
		}
	}
	if i := slices.IndexFunc(patterns, func(p string) bool { return !matched[p] }); i >= 0 {
		return nil, fmt.Errorf("no figure is named %q; there are %s", patterns[i], strings.Join(known, ", "))
	}
	return chosen, nil
}
