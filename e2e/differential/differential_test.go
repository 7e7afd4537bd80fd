package differential

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
	opsVariable    = "LATCHKEY_DIFF_OPS"
	seedVariable   = "LATCHKEY_DIFF_SEED"
	shardsVariable = "LATCHKEY_DIFF_SHARDS"
	defaultOps     = 6000
	// shardsOps is the default length with several shards, of which there are
	// defaultShards, or manyShards.
	shardsOps     = 4000
	defaultShards = 4
	manyShards    = 8
)

// layoutOf returns the layout that the environment asks for, of n shards if it does not say.
func layoutOf(t *testing.T, n uint64) *layout {
	t.Helper()
	return newLayout(int(setting(t, shardsVariable, n)))
}

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
	t.Parallel()
	seed := diffSeed(t)
	runDifferential(t, startEtcd(t, "etcd"), startShards(t, layoutOf(t, 1), seed), seed, setting(t, opsVariable, defaultOps))
}

// TestDifferentialShards is TestDifferential with several shards, always as short. A run
// of another size or number of shards is TestDifferential's.
func TestDifferentialShards(t *testing.T) {
	for n, ops := range map[int]uint64{defaultShards: shardsOps, manyShards: shardsOps / 2} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			seed := diffSeed(t)
			runDifferential(t, startEtcd(t, "etcd"), startShards(t, newLayout(n), seed), seed, ops)
		})
	}
}

func diffSeed(t *testing.T) uint64 {
	t.Helper()
	return setting(t, seedVariable, uint64(time.Now().UnixNano()))
}

// TestDifferentialOfEtcd runs the test of etcd against etcd: what it finds would
// be a fault of its own.
func TestDifferentialOfEtcd(t *testing.T) {
	const ops = 1500
	runDifferential(t, startEtcd(t, "etcd"), startEtcd(t, "other etcd"), diffSeed(t), ops)
}

func runDifferential(t *testing.T, reference, other *server, seed, ops uint64) {
	t.Helper()
	replay := replayOf(t, other, seed, ops)
	t.Logf("seed %d, %d operations; to run it again: %s", seed, ops, replay)
	d := newDiffer(t, reference, other, seed)
	d.replay = replay
	d.run(int(ops))
	d.report()
	if ops >= defaultOps {
		d.missed()
	}
	if ops >= shardsOps {
		d.gen.layout.missed(t)
	}
}

// replayOf is the command that runs a sequence again.
func replayOf(t *testing.T, other *server, seed, ops uint64) string {
	t.Helper()
	shards := 1
	if other.order != nil {
		shards = len(other.order.layout.shards)
	}
	name, _, _ := strings.Cut(t.Name(), "/")
	return fmt.Sprintf("%s=%d %s=%d %s=%d go test ./e2e/differential -run '^%s$'",
		shardsVariable, shards, seedVariable, seed, opsVariable, ops, strings.TrimSuffix(name, "Shards"))
}

// requiredKinds and requiredErrors must occur in every run of the default length.
var (
	requiredKinds = []string{
		"Range", "RangeStream", "Put", "DeleteRange", "Txn", "Compact",
		"LeaseGrant", "LeaseRevoke", "LeaseKeepAlive", "LeaseKeepAlive end", "LeaseTimeToLive", "LeaseLeases",
		"Watch create", "Watch cancel", "Watch cancel of an unknown id", "Watch progress answered",
		"Watch progress unanswered", "Watch half close", "Watch stream reopened", "Watch without request",
		"Hash", "HashKV", "Status", "Alarm", "MemberList",
	}
	requiredErrors = []string{
		"InvalidArgument: etcdserver: key is not provided",
		"InvalidArgument: etcdserver: key not found",
		"InvalidArgument: etcdserver: value is provided",
		"InvalidArgument: etcdserver: lease is provided",
		"InvalidArgument: etcdserver: invalid sort option",
		"InvalidArgument: etcdserver: too many operations in txn request",
		"InvalidArgument: etcdserver: duplicate key given in txn request",
		"InvalidArgument: etcdserver: request is too large",
		"ResourceExhausted: " + messageTooLarge,
		"ResourceExhausted: etcdserver: mvcc: database space exceeded",
		"DataLoss: etcdserver: corrupt cluster",
		"FailedPrecondition: etcdserver: lease already exists",
		"NotFound: etcdserver: requested lease not found",
		"OutOfRange: etcdserver: too large lease TTL",
		"OutOfRange: etcdserver: mvcc: required revision has been compacted",
		"OutOfRange: etcdserver: mvcc: required revision is a future revision",
		"Unimplemented: RangeStream does not support custom sort orders",
		"Unimplemented: RangeStream does not support revision filters",
		"watch: compacted",
		"watch: etcdserver: mvcc: required revision has been compacted",
		"watch: mvcc: duplicate watch ID provided on the WatchStream",
		"watch: mvcc: watcher range is empty",
	}
)

// report prints what the run has met.
func (d *differ) report() {
	var b strings.Builder
	fmt.Fprintf(&b, "%d revisions in %v\noperations, and errors:\n", d.gen.rev, time.Since(d.started).Round(time.Second))
	for _, kind := range slices.Sorted(maps.Keys(d.kinds)) {
		fmt.Fprintf(&b, "%8d %8d  %s\n", d.kinds[kind], d.failed[kind], kind)
	}
	fmt.Fprint(&b, "errors:\n")
	printCounts(&b, d.errs)
	fmt.Fprint(&b, "allowed differences:\n")
	d.ledger.print(&b)
	d.gen.layout.print(&b)
	d.t.Log(b.String())
}

// missed fails when the run has not met everything that it must.
func (d *differ) missed() {
	d.t.Helper()
	for _, kind := range requiredKinds {
		if d.kinds[kind] == 0 {
			d.t.Errorf("operation %q was never done", kind)
		}
	}
	for _, text := range requiredErrors {
		if d.errs[text] == 0 {
			d.t.Errorf("error %q was never met", text)
		}
	}
}

func printCounts(b *strings.Builder, counts map[string]int) {
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(b, "%8d  %s\n", counts[name], name)
	}
}
