package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// table collects the figures of all rounds.
type table struct {
	rows []*row
}

// row is one figure of one work.
type row struct {
	work, metric string
	// values are those of each server, one a round.
	values map[string][]float64
}

func (t *table) add(work, metric, server string, v float64) {
	i := slices.IndexFunc(t.rows, func(r *row) bool { return r.work == work && r.metric == metric })
	if i < 0 {
		i = len(t.rows)
		t.rows = append(t.rows, &row{work: work, metric: metric, values: make(map[string][]float64)})
	}
	t.rows[i].values[server] = append(t.rows[i].values[server], v)
}

// print writes medians, and behind them the median of the ratios to the first server.
func (t *table) print(out io.Writer, o options) error {
	var b strings.Builder
	b.WriteString("work\tfigure\t")
	for _, s := range o.servers {
		b.WriteString(s.name + "\t\t")
	}
	for _, r := range t.rows {
		b.WriteString("\n" + r.work + "\t" + r.metric + "\t")
		base := r.values[o.servers[0].name]
		for _, s := range o.servers {
			values := r.values[s.name]
			ratios := make([]float64, 0, len(values))
			for i, v := range values {
				ratios = append(ratios, v/base[i])
			}
			fmt.Fprintf(&b, "%.4g\t%.2f\t", median(values), median(ratios))
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	if _, err := io.WriteString(w, b.String()+"\n"); err != nil {
		return err
	}
	return w.Flush()
}

// median returns the middle of values, the lower one of two.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)/2]
}
