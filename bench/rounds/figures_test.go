package main

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
)

// nodes are processes that were never started.
func nodes(n int) running {
	var r running
	for i := range n {
		r.nodes = append(r.nodes, node{
			name:  "n" + string(rune('1'+i)),
			syncs: func(context.Context) (float64, error) { return 0, nil },
		})
	}
	return r
}

func TestFiguresCanBeToldApart(t *testing.T) {
	seen := make(map[string]bool)
	for _, g := range figures {
		for _, f := range g.figures {
			if seen[f.key] || seen[f.title+g.title] {
				t.Errorf("%s is there twice", f.key)
			}
			seen[f.key], seen[f.title+g.title] = true, true
			if !slices.Contains(metrics, f.metric) || len(f.shards) == 0 {
				t.Errorf("%s has metric %q and shards %v", f.key, f.metric, f.shards)
			}
			for _, goal := range f.goals {
				if !slices.Contains(f.shards, goal.shards) || goal.toOne && !slices.Contains(f.shards, 1) || !better(goal.metric, goal.aim, goal.must) {
					t.Errorf("%s can't be held against %+v", f.key, goal)
				}
			}
		}
	}
}

func TestChoose(t *testing.T) {
	chosen, err := choose(figures, "alone-put-*,idle")
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, g := range chosen {
		for _, f := range g.figures {
			keys = append(keys, f.key)
		}
	}
	if got := strings.Join(keys, " "); got != "idle alone-put-1 alone-put-8" {
		t.Errorf("chose %s", got)
	}
	if all, err := choose(figures, ""); err != nil || len(all) != len(figures) {
		t.Errorf("no pattern chose %d groups, %v", len(all), err)
	}
	for _, only := range []string{"put-1,putt", "[", "put-1,"} {
		if _, err := choose(figures, only); err == nil {
			t.Errorf("%q was taken", only)
		}
	}
}

func TestVariants(t *testing.T) {
	servers := []server{{name: "etcd", command: []string{"etcd"}}, {name: "latchkey", command: []string{"latchkey", "--initial-splits", "{}"}}}
	servers = append(servers, server{name: "redis", rival: &rival{}})
	g := group{figures: []figure{{shards: []int{16, 1}, work: work("lock", 1)}, {shards: []int{4, 1}, work: work("put", 1)}}}
	var names []string
	for _, v := range g.variants(servers) {
		names = append(names, v.name())
	}
	if got := strings.Join(names, "; "); got != "etcd; latchkey; latchkey, 4 shards; latchkey, 16 shards; redis" {
		t.Errorf("variants are %s", got)
	}
	f := g.figures[1]
	if redis := (variant{server: servers[2]}); f.measuredWith(redis) || !g.figures[0].measuredWith(redis) {
		t.Error("locks and nothing else are measured of redis")
	}
	byAPI := figure{shards: one, api: "grpc", work: work("handoff", 1)}
	only := byAPI
	only.apiOnly = true
	etcd, latchkey, redis := variant{server: servers[0]}, variant{server: servers[1], shards: 1}, variant{server: servers[2]}
	if !byAPI.measuredWith(etcd) || !byAPI.measuredWith(latchkey) || byAPI.measuredWith(redis) {
		t.Error("the lock API is not compared with etcd's mutex alone")
	}
	if only.measuredWith(etcd) || !only.measuredWith(latchkey) {
		t.Error("what only the lock API can do is measured of others")
	}
	for shards, want := range map[int]bool{0: true, 1: true, 4: true, 16: false} {
		if f.measuredWith(variant{shards: shards}) != want {
			t.Errorf("measured with %d shards: %v", shards, !want)
		}
	}
}

func TestCommand(t *testing.T) {
	for _, c := range []struct {
		command string
		shards  int
		want    string
	}{
		{"latchkey --initial-splits {}", 4, "latchkey --initial-splits bench/40/,bench/80/,bench/c0/"},
		{"latchkey --initial-splits {}", 1, "latchkey --initial-splits "},
		{"latchkey --initial-splits {2} --name {a}", 0, "latchkey --initial-splits bench/80/ --name {a}"},
		{"etcd", 0, "etcd"},
	} {
		v := variant{server: server{command: strings.Fields(c.command)}, shards: c.shards}
		if got := strings.Join(v.command(), " "); got != c.want {
			t.Errorf("%s with %d shards is %q", c.command, c.shards, got)
		}
	}
}

func TestParse(t *testing.T) {
	o, err := parse([]string{"-work", "put,idle", "-nodes", "3", "-clients", "7", "-shards", "1,4", "a=b c", "d=e {}"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if len(o.groups) != 1 || o.groups[0].nodes != 3 || len(o.servers) != 2 || !o.servers[1].divisible() || o.servers[0].divisible() {
		t.Fatalf("options are %+v", o)
	}
	put, idle := o.groups[0].figures[0], o.groups[0].figures[1]
	if got := strings.Join(put.work, " "); got != "-work put -clients 7" || !slices.Equal(put.shards, []int{1, 4}) || idle.work != nil {
		t.Errorf("figures are %+v", o.groups[0].figures)
	}
	for _, args := range [][]string{
		{"-rounds", "0"}, {"-for", "0s"}, {"-work", "put", "-shards", "many"}, {"-only", "nothing"}, {"etcd"}, {"etcd="}, {"a=b", "a=c"},
	} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("parsed %q", args)
		}
	}
}
