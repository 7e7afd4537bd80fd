package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// measured is a page of two rounds: the machine is half as fast in the second.
func measured() page {
	f := figure{key: "put-1", title: "put & get", shards: []int{1, 4}, metric: p50, goals: []goal{
		{metric: p50, shards: 1, must: 1, aim: 0.8},
		{metric: syncs, shards: 1, absolute: true, must: 1, aim: 0.5},
		{metric: p50, shards: 4, toOne: true, must: 1.15, aim: 1.05},
	}}
	p := page{groups: []group{{title: "Nodes", figures: []figure{f}}}, servers: []server{
		{name: "etcd", command: []string{"etcd"}}, {name: "latchkey", command: []string{"latchkey", "{}"}},
	}}
	for server, values := range map[string][]float64{"etcd": {2, 4}, "latchkey": {1, 2}, "latchkey, 4 shards": {2, 5}} {
		for round, v := range values {
			p.report.Samples = append(p.report.Samples, sample{Figure: "put-1", Server: server, Round: round, Values: map[string]float64{p50: v, syncs: 1}})
		}
	}
	return p
}

func TestMarkdown(t *testing.T) {
	text := measured().markdown("charts")
	for _, want := range []string{
		"| put & get | etcd |  | **2.000** |  |  | 1.000 |  |  |\n",
		"|  | latchkey |  | **1.000 (0.50)** |  |  | 1.000 (1.00) |  |  |\n",
		"|  | latchkey, 4 shards |  | **2.000 (1.00; 2.00)** |  |  | 1.000 (1.00; 1.00) |  |  |\n",
		"| put & get | latchkey | p50, ms | etcd | 0.50 | 1 | 0.8 | aim |\n",
		"| put & get | latchkey | log fsyncs/op and node |  | 1.00 | 1 | 0.5 | must |\n",
		"| put & get | latchkey, 4 shards | p50, ms | one shard | 2.00 | 1.15 | 1.05 | no |\n",
		"![put & get](charts/put-1.svg)\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "Failed") {
		t.Errorf("a good run says that it failed:\n%s", text)
	}
}

func TestMarkdownOfAFailure(t *testing.T) {
	p := measured()
	for i := range p.report.Samples {
		if s := &p.report.Samples[i]; s.Server == "etcd" {
			s.Values, s.Failed = nil, "no leader"
		}
	}
	text := p.markdown("")
	for _, want := range []string{"| put & get | etcd |  |  |  |", "**1.000 (?)**", "| etcd | ? | 1 | 0.8 | no |", "## Failed", "put-1 of etcd in round 1: no leader"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestBetter(t *testing.T) {
	if !better(rate, 2, 1) || better(rate, 1, 2) || !better(p50, 1, 2) || better(p50, 2, 1) || !better(rate, 1, 1) || !better(p50, 1, 1) {
		t.Error("more operations and less of all else is better")
	}
}

func TestChart(t *testing.T) {
	c := chart{title: "put <1> & more", unit: "ms", bars: []bar{{"etcd", 2, 1, 4}, {"latchkey", 4, 3, 8}}}
	text := c.svg()
	wellFormed(t, text)
	// The longest line, to 8, takes the 480 pixels that there are.
	for _, want := range []string{"put &lt;1&gt; &amp; more", `width="120.0"`, `width="240.0"`, "M220.0 65H400.0", "M340.0 93H640.0", ">2.000<", ">4.000<"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	wellFormed(t, chart{title: "nothing"}.svg())
	zero := chart{bars: []bar{{label: "none"}}}.svg()
	wellFormed(t, zero)
	if strings.Contains(zero, "NaN") || strings.Contains(zero, "Inf") {
		t.Errorf("zeros are drawn as\n%s", zero)
	}
}

func wellFormed(t *testing.T, text string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	p := measured()
	if err := p.write(dir); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got report
	if err := json.Unmarshal(raw, &got); err != nil || len(got.Samples) != 6 || got.Samples[0].Values[syncs] != 1 {
		t.Errorf("results.json has %s, %v", raw, err)
	}
	svg, err := os.ReadFile(filepath.Join(dir, "charts", "put-1.svg"))
	if err != nil || !strings.Contains(string(svg), "less is better") || strings.Count(string(svg), "<path") != 3 {
		t.Errorf("the chart is %s, %v", svg, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "RESULTS.md")); err != nil {
		t.Error(err)
	}
}

// A figure that is held against another of the same servers, with as many shards, is so also where
// there is no server but one.
func TestGoalToAnotherFigure(t *testing.T) {
	p := measured()
	p.servers = p.servers[1:]
	g := &p.groups[0]
	g.figures = append(g.figures, figure{
		key: "txn", title: "txn", shards: []int{4}, metric: p50, goals: []goal{{metric: p50, shards: 4, to: "put-1", must: 2.5, aim: 2}},
	})
	for round, v := range []float64{5, 11} {
		p.report.Samples = append(p.report.Samples, sample{
			Figure: "txn", Server: "latchkey, 4 shards", Round: round, Values: map[string]float64{p50: v},
		})
	}
	want := "| txn | latchkey, 4 shards | p50, ms | put & get | 2.20 | 2.5 | 2 | must |\n"
	if text := p.markdown(""); !strings.Contains(text, want) {
		t.Errorf("no %q in\n%s", want, text)
	}
}
