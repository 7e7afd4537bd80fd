package e2e

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Settings of the differential test.
const (
	opsVariable  = "LATCHKEY_DIFF_OPS"
	seedVariable = "LATCHKEY_DIFF_SEED"
	defaultOps   = 6000
)

// setting returns a number of the environment.
func setting(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestDifferential runs random operations on a real etcd and on Latchkey and
// compares everything that they answer.
func TestDifferential(t *testing.T) {
	runDifferential(t, startEtcd(t, "etcd"), startLatchkey(t), setting(t, opsVariable, defaultOps))
}

// TestDifferentialOfEtcd runs the test of etcd against etcd: what it finds would
// be a fault of its own.
func TestDifferentialOfEtcd(t *testing.T) {
	ops := min(setting(t, opsVariable, defaultOps), 200_000) / 10
	runDifferential(t, startEtcd(t, "etcd"), startEtcd(t, "other etcd"), ops)
}

func runDifferential(t *testing.T, reference, other *server, ops uint64) {
	t.Helper()
	seed := setting(t, seedVariable, uint64(time.Now().UnixNano()))
	replay := fmt.Sprintf("%s=%d %s=%d go test ./e2e -run '^%s$'", seedVariable, seed, opsVariable,
		setting(t, opsVariable, defaultOps), t.Name())
	t.Logf("seed %d, %d operations; to run it again: %s", seed, ops, replay)
	d := newDiffer(t, reference, other, seed)
	d.replay = replay
	d.run(int(ops))
	d.report()
}

// report prints what the run has met, and fails when it has missed something.
func (d *differ) report() {
	var b strings.Builder
	fmt.Fprintf(&b, "%d revisions in %v\noperations:\n", d.gen.rev, time.Since(d.started).Round(time.Second))
	printCounts(&b, d.kinds)
	fmt.Fprint(&b, "errors:\n")
	printCounts(&b, d.errs)
	fmt.Fprint(&b, "allowed differences:\n")
	d.ledger.print(&b)
	d.t.Log(b.String())
}

func printCounts(b *strings.Builder, counts map[string]int) {
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(b, "%8d  %s\n", counts[name], name)
	}
}
