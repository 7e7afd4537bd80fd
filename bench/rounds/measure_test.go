package main

import (
	"testing"
	"time"
)

func TestParseReport(t *testing.T) {
	ops, values, err := parseReport("work=put clients=8 ops=4500 ops/s=1500 p50=980µs p99=1.25s max=2s\n")
	if err != nil {
		t.Fatal(err)
	}
	if ops != 4500 || values[rate] != 1500 || values[p50] != 0.98 || values[p99] != 1250 {
		t.Errorf("ops %v, %v", ops, values)
	}
	for _, text := range []string{"", "measuring", "ops=1 ops/s=1 p50=soon p99=1s max=1s"} {
		if _, _, err := parseReport(text); err == nil {
			t.Errorf("parsed %q", text)
		}
	}
}

func TestParseStat(t *testing.T) {
	got, err := parseStat("42 (a ) b) S 1 42 42 0 -1 4194560 5 0 0 0 150 25 7 8 20 0 9 0 100 1000 200")
	if err != nil || got != 1750*time.Millisecond {
		t.Errorf("parseStat = %v, %v", got, err)
	}
	for _, text := range []string{"", "42 (a) S 1 2", "42 (a) S 1 42 42 0 -1 4194560 5 0 0 0 x 25 7"} {
		if _, err := parseStat(text); err == nil {
			t.Errorf("parsed %q", text)
		}
	}
}

func TestUsageOfAnOperation(t *testing.T) {
	r := nodes(2)
	values := make(map[string]float64)
	r.add(values, usage{servers: time.Second, syncs: []float64{5, 50}, rss: []float64{1, 1}},
		usage{servers: 3 * time.Second, syncs: []float64{105, 350}, rss: []float64{30, 50}}, 100)
	for metric, want := range map[string]float64{serverCPU: 20_000, syncs: 2, "log fsyncs/op, n1": 1, "log fsyncs/op, n2": 3, memory: 40} {
		if values[metric] != want {
			t.Errorf("%s = %v, want %v", metric, values[metric], want)
		}
	}
}

func TestMemoryOfEach(t *testing.T) {
	began, ended := usage{rss: []float64{10, 30}}, usage{rss: []float64{20, 50}}
	if got := grown(began, ended); got != 15 {
		t.Errorf("each node has grown by %v MiB, want 15", got)
	}
}
