package main

import (
	"math"
	"strings"
	"testing"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 3, 2}, 2},
	} {
		if got := median(c.values); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.values, got, c.want)
		}
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing = %v", got)
	}
}

// TestRatioIsOfTheSameRound has a machine that is twice as slow in each round as before:
// the ratio of the medians would say 2, that of each round says 0.5 or 1.
func TestRatioIsOfTheSameRound(t *testing.T) {
	of := map[int]float64{0: 1, 1: 2, 2: 4, 3: 100}
	to := map[int]float64{0: 2, 1: 4, 2: 4, 4: 1}
	if got := ratio(of, to); got != 0.5 {
		t.Errorf("ratio = %v, want 0.5", got)
	}
	if got := ratio(of, map[int]float64{0: 0, 7: 1}); !math.IsNaN(got) {
		t.Errorf("ratio without a base = %v", got)
	}
}

func TestValuesLeaveOutWhatFailed(t *testing.T) {
	r := report{Samples: []sample{
		{Figure: "put-1", Server: "etcd", Round: 0, Values: map[string]float64{rate: 10}},
		{Figure: "put-1", Server: "etcd", Round: 1, Failed: "no leader"},
		{Figure: "put-1", Server: "etcd", Round: 2, Values: map[string]float64{rate: 1}, Failed: "kill"},
		{Figure: "put-1", Server: "latchkey", Round: 0, Values: map[string]float64{rate: 20}},
		{Figure: "put-8", Server: "etcd", Round: 0, Values: map[string]float64{rate: 30}},
	}}
	if got := r.values("put-1", "etcd", rate); len(got) != 1 || got[0] != 10 {
		t.Errorf("values = %v", got)
	}
	err := r.failures()
	if err == nil || !strings.Contains(err.Error(), "put-1 of etcd in round 2: no leader") {
		t.Errorf("failures = %v", err)
	}
	r.Samples = r.Samples[3:]
	if err := r.failures(); err != nil {
		t.Errorf("failures of a good run = %v", err)
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0.000", 0.9876: "0.988", 9.9: "9.900", 12.346: "12.35", 999.99: "1000.0", 12345.6: "12346"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %s, want %s", v, got, want)
		}
	}
}
