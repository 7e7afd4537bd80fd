package main

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report is all that was measured; results.json is its form.
type report struct {
	Date    time.Time `json:"date"`
	Rounds  int       `json:"rounds"`
	Seconds float64   `json:"seconds"`
	Cores   int       `json:"cores"`
	CPU     string    `json:"cpu,omitempty"`
	Samples []sample  `json:"samples"`
}

// sample is a figure of one server in one round.
type sample struct {
	Figure string `json:"figure"`
	Server string `json:"server"`
	Nodes  int    `json:"nodes"`
	// Shards is 0 where the server has no choice.
	Shards int                `json:"shards"`
	Round  int                `json:"round"`
	Values map[string]float64 `json:"values,omitempty"`
	// Failed says why there are no values, or why they are not to be trusted.
	Failed string `json:"failed,omitempty"`
}

// setMachine notes what the report was measured on.
func (r *report) setMachine() {
	r.Cores = runtime.NumCPU()
	// A machine that does not tell is left unnamed.
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return
	}
	for text := range bytes.Lines(text) {
		if key, name, ok := strings.Cut(string(text), ":"); ok && strings.TrimSpace(key) == "model name" {
			r.CPU = strings.TrimSpace(name)
			return
		}
	}
}

// failures returns what failed.
func (r *report) failures() error {
	var failed []error
	for _, s := range r.Samples {
		if s.Failed != "" {
			failed = append(failed, fmt.Errorf("%s of %s in round %d: %s", s.Figure, s.Server, s.Round+1, s.Failed))
		}
	}
	return errors.Join(failed...)
}

// values returns a metric of a figure by round.
func (r *report) values(figure, server, metric string) map[int]float64 {
	values := make(map[int]float64)
	for _, s := range r.Samples {
		if v, ok := s.Values[metric]; ok && s.Failed == "" && s.Figure == figure && s.Server == server {
			values[s.Round] = v
		}
	}
	return values
}

// median returns the middle of values, the lower one of two, and NaN if there are none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)/2]
}

// ratio returns the median of the ratios of two metrics in the same round, and NaN if
// there is no round with both.
func ratio(of, to map[int]float64) float64 {
	var ratios []float64
	for round, v := range of {
		if base, ok := to[round]; ok && base > 0 {
			ratios = append(ratios, v/base)
		}
	}
	return median(ratios)
}
