package sim

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
)

// mostRuns is how often a test is run for what it is about to come about.
const mostRuns = 5

// unshown tells that what a test is about did not come about in a run.
type unshown string

// unshown ends a run in which what the test is about did not come about, such as that a
// node misses its leader: by chance, which a seed and the scheduler have a part in. Only
// the goroutine of the test calls it.
func (c *cluster) unshown(format string, args ...any) {
	panic(unshown(fmt.Sprintf(format, args...)))
}

// untilShown runs a test on a cluster of its own, in a bubble, with the next seed where a
// run was unshown. The test fails when it was unshown in all of mostRuns.
func untilShown(t *testing.T, o options, fn func(c *cluster)) {
	t.Helper()
	for range mostRuns {
		reason := shown(t, o, fn)
		if reason == "" || t.Failed() {
			return
		}
		t.Logf("seed %d: %s; the run shows nothing", o.seed, reason)
		o.seed++
	}
	t.Errorf("%d runs showed nothing", mostRuns)
}

// shown is one run. It returns why it was unshown, if it was.
func shown(t *testing.T, o options, fn func(c *cluster)) (reason unshown) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		defer func() {
			switch r := recover().(type) {
			case nil:
			case unshown:
				reason = r
			default:
				panic(r)
			}
		}()
		c := newCluster(t, o)
		defer c.close()
		fn(c)
	})
	return reason
}

// A run that was unshown is followed by one with the next seed, until something is shown.
func TestRunsUntilShown(t *testing.T) {
	var seeds []uint64
	untilShown(t, options{seed: 7}, func(c *cluster) {
		if seeds = append(seeds, c.options.seed); len(seeds) < 3 {
			c.unshown("run %d", len(seeds))
		}
	})
	if !slices.Equal(seeds, []uint64{7, 8, 9}) {
		t.Errorf("runs with the seeds %d", seeds)
	}
}
