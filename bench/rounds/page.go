package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// page prints a report.
type page struct {
	report  report
	groups  []group
	servers []server
	// notes are what is to be said of servers.
	notes []string
}

// chartsFolder holds the charts, beside the text.
const chartsFolder = "charts"

// write writes the text, the charts and the raw figures to a folder.
func (p page) write(folder string) error {
	charts := filepath.Join(folder, chartsFolder)
	if err := os.MkdirAll(charts, 0o755); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(p.report, "", "\t")
	if err != nil {
		return err
	}
	files := map[string][]byte{
		filepath.Join(folder, "results.json"): append(raw, '\n'),
		filepath.Join(folder, "RESULTS.md"):   []byte(p.markdown(chartsFolder)),
	}
	for _, g := range p.groups {
		for _, f := range g.figures {
			files[filepath.Join(charts, f.key+".svg")] = []byte(p.chart(f).svg())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := os.WriteFile(name, files[name], 0o644); err != nil {
			return err
		}
	}
	return nil
}

// markdown returns the tables, with the charts that lie in a folder unless it is empty.
func (p page) markdown(charts string) string {
	var b strings.Builder
	r := p.report
	b.WriteString("# What bench/rounds measured\n\n")
	fmt.Fprintf(&b, "%s, %d cores", r.Date.Format("2006-01-02"), r.Cores)
	if r.CPU != "" {
		fmt.Fprintf(&b, " (%s)", r.CPU)
	}
	fmt.Fprintf(&b, ", which carry servers and clients; %d alternating rounds of %v s a figure.\n", r.Rounds, r.Seconds)
	fmt.Fprintf(&b, "Medians of the rounds; in parentheses the median of the ratios to %s in the same round,\n", p.servers[0].name)
	b.WriteString("and behind the semicolon that to the same server with one shard. Server CPU is the sum of\n")
	b.WriteString("all nodes.\n")
	if len(p.notes) > 0 {
		b.WriteString("\n* " + strings.Join(p.notes, ".\n* ") + ".\n")
	}
	p.goals(&b)
	for _, g := range p.groups {
		fmt.Fprintf(&b, "\n## %s\n\n| work | server | %s |\n|---|---|%s\n", g.title, strings.Join(g.metrics(), " | "), strings.Repeat("--:|", len(g.metrics())))
		for _, f := range g.figures {
			p.rows(&b, f, g.metrics())
		}
		if charts == "" {
			continue
		}
		b.WriteByte('\n')
		for _, f := range g.figures {
			fmt.Fprintf(&b, "![%s](%s/%s.svg)\n", f.title, charts, f.key)
		}
	}
	if err := r.failures(); err != nil {
		fmt.Fprintf(&b, "\n## Failed\n\n```\n%v\n```\n", err)
	}
	return b.String()
}

// rows writes a figure, a row for each variant. The metric that matters is bold.
func (p page) rows(b *strings.Builder, f figure, metrics []string) {
	title := f.title
	for _, v := range f.variants(p.servers) {
		fmt.Fprintf(b, "| %s | %s |", title, v.name())
		title = ""
		for _, metric := range metrics {
			cell := p.cell(f, v, metric)
			if metric == f.metric && cell != "" {
				cell = "**" + cell + "**"
			}
			b.WriteString(" " + cell + " |")
		}
		b.WriteByte('\n')
	}
}

// cell returns a metric of a variant with its ratios.
func (p page) cell(f figure, v variant, metric string) string {
	values := p.report.values(f.key, v.name(), metric)
	if len(values) == 0 {
		return ""
	}
	var ratios []string
	if first := p.first(f); v.name() != first.name() {
		ratios = append(ratios, ratioText(ratio(values, p.report.values(f.key, first.name(), metric))))
	}
	if undivided := v.undivided(); v.shards > 1 && f.measuredWith(undivided) {
		ratios = append(ratios, ratioText(ratio(values, p.report.values(f.key, undivided.name(), metric))))
	}
	text := number(median(slices.Collect(maps.Values(values))))
	if len(ratios) > 0 {
		text += " (" + strings.Join(ratios, "; ") + ")"
	}
	return text
}

// first returns the variant that the others are compared with: of the first server, unless that is left out.
func (p page) first(f figure) variant { return f.variants(p.servers)[0] }

// goals writes what the figures shall reach, and what they do.
func (p page) goals(b *strings.Builder) {
	var rows strings.Builder
	for _, g := range p.groups {
		for _, f := range g.figures {
			for _, v := range f.variants(p.servers) {
				for _, goal := range f.goals {
					if (goal.to != "" || v.name() != p.first(f).name()) && v.shards == goal.shards {
						rows.WriteString(p.goal(f, v, goal))
					}
				}
			}
		}
	}
	if rows.Len() > 0 {
		b.WriteString("\n## Figures to reach\n\n| work | server | figure | compared with | measured | must | aim | reached |\n|---|---|---|---|--:|--:|--:|---|\n")
		b.WriteString(rows.String())
	}
}

// goal returns the row of one goal.
func (p page) goal(f figure, v variant, g goal) string {
	values := p.report.values(f.key, v.name(), g.metric)
	base := p.first(f)
	with := base.name()
	if g.toOne {
		base, with = v.undivided(), "one shard"
	}
	figure := f.key
	if g.to != "" {
		base, with, figure = v, p.title(g.to), g.to
	}
	got := ratio(values, p.report.values(figure, base.name(), g.metric))
	if g.absolute {
		with, got = "", median(slices.Collect(maps.Values(values)))
	}
	// What is printed is what is compared.
	got = math.Round(got*100) / 100
	reached := "no"
	if better(g.metric, got, g.aim) {
		reached = "aim"
	} else if better(g.metric, got, g.must) {
		reached = "must"
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %v | %v | %s |\n", f.title, v.name(), g.metric, with, ratioText(got), g.must, g.aim, reached)
}

// title returns the title of a figure that is measured, and else its key.
func (p page) title(key string) string {
	for _, g := range p.groups {
		for _, f := range g.figures {
			if f.key == key {
				return f.title
			}
		}
	}
	return key
}

// chart returns the chart of a figure's metric.
func (p page) chart(f figure) chart {
	c := chart{title: f.title, unit: f.metric + ", less is better"}
	if f.metric == rate {
		c.unit = f.metric + ", more is better"
	}
	for _, v := range f.variants(p.servers) {
		values := slices.Collect(maps.Values(p.report.values(f.key, v.name(), f.metric)))
		if len(values) > 0 {
			c.bars = append(c.bars, bar{label: v.name(), middle: median(values), least: slices.Min(values), most: slices.Max(values)})
		}
	}
	return c
}

// number prints a value with four digits, or all before the point.
func number(v float64) string {
	places := 3
	for limit := 10.0; places > 0 && math.Abs(v) >= limit; limit *= 10 {
		places--
	}
	return strconv.FormatFloat(v, 'f', places, 64)
}

// ratioText prints a ratio, or a question mark if there is none.
func ratioText(v float64) string {
	if math.IsNaN(v) {
		return "?"
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
