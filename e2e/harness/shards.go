package harness

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// fourShardsVariable makes the tests' servers have four data shards, if it is 4.
const fourShardsVariable = "LATCHKEY_E2E_SHARDS"

// Follows reports whether a revision may be the next one after another.
func Follows(rev, after int64) bool { return rev == after+1 || FourShards() && rev > after }

// SplitsFlag is the flag of a server that divides its keys among shards.
const SplitsFlag = "--initial-splits"

// NoWritesOverShards is the flag of a server that refuses writes over several shards.
const NoWritesOverShards = "--feature-gates=WritesOverShards=false"

// FourShards says that servers have four data shards: revisions may have gaps.
func FourShards() bool { return os.Getenv(fourShardsVariable) == "4" }

// otherSplits are the splits of tests that cuts does not name: before most locks,
// and behind them.
const otherSplits = "b,l/,m"

// cuts are the splits of tests and subtests, among the keys that they use. What a
// test writes together lies together: the keys of one lock or election, the accounts
// of a transaction, the key "__priority" with "priority/" of the recipes' queue.
var cuts = map[string]string{
	"TestSlowWatchersAreToldOfCompaction":  "p/3,p/5,p/7",
	"TestProgressOfSilentWatch":            "b,silent,t",
	"TestFragmentedAnswers":                "f/14/,f/5/,f/lease/",
	"TestPrevKVOfSlowWatchAfterCompaction": "b,x,y",
	"TestCreatedComesFirst":                "a/3,a/5,a/7",
	"TestWatchOddRanges":                   "a,b,c",
	"TestConcurrentWritersAreOrdered":      "p/15,p/23,p/5",
	"TestWatchResumesOverCrashes":          "w/2,w/4,w/7",
	"TestCaughtUpWatchSurvivesCompaction":  "k/,k/t,o",

	"TestRenewalRacesWithExpiry":  "race/0/1/00100,race/1/2/00100,race/2/1/00100",
	"TestAttachmentsOverRestarts": "k2,k3,k4",
	"TestLeaseIDs":                "negative,none,o",
	"TestLeaseWithManyKeys":       "many/002/,many/005/,many/008/",

	"TestElectionNameIsPrefixOfKeys": "xy/,xyz,y",
	"TestHandOverUnderLoad":          "b,l0,m",
	"TestRevisionContract":           "d/,h/,l/",
	"TestRecipes":                    "q,rw/,rw/w",
	"TestMutex":                      "mutex/1,mutex/2,mutex/4",

	"TestPutIntoDeletedRange":          "0,A,a",
	"TestDeleteAndCreateAtOneRevision": "0,A,a",
	"TestCompareMissingKeys":           "missing,three/1,three/2",
	"TestLimitMoreCount":               "/registry/x/0000600,/registry/x/0001200,/registry/y",
	"TestSortedRanges":                 "s/b,s/c,s/d",
	"TestZeroBytesAndEmptyKeys":        `Z,a\x00,b`,
	"TestSizeLimits":                   "l,n,t/8",
	"TestCompareAfterDelete":           "k,l,t",
	"TestPaging":                       "/registry/x/0001200,/registry/x/0002400,/registry/x/0003600",
	"TestKubernetes":                   "/registry/pods/08,/registry/pods/16,/registry/pods/more",

	"TestQuotaReached":                  "fill,k,l",
	"TestRevisionsNeverGoBack":          "b,c,filler/3/",
	"TestLimitOneOfHugePrefix":          "huge/0012000,huge/0024000,huge/0048000",
	"TestIdleWatchersAndReconnectStorm": "idle/12/,idle/17/,idle/5/",
	"TestClosedWatchersFreeEverything":  "k,w/2,w/5",

	"TestChangingUsersBreaksNoRequests": "k/12,k/17,k/5",
	"TestLeasesOfOtherUsers":            "a2,b,b2",
	"TestRangePermissions":              "Z,a,b",
	"TestWatchIsCheckedOnTheRawRange":   `a,a\x00,b`,
	"TestNestedTransactionsAreChecked":  "r,s,w",

	"TestGoClients/stm":       "stm/1/,stm/2/,stm/3/",
	"TestGoClients/ordering":  "ordering/2,ordering/4,ordering/6",
	"TestGoClients/namespace": "ns/b,o,other",
	"TestGoClients/leasing":   "b,k,t",
	"TestGoClients/mirror":    "mirror/0500,mirror/1700,mirror/2510",
	"TestEtcdctl":             "k0,m/2,w/",

	"TestOtherClientGo/long/crashes":  "/registry/leases/c,/registry/leases/d,/registry/leases/e",
	"TestOtherClientGo":               "/registry/leases/rush1,/registry/leases/rush2,/registry/leases/rush4",
	"TestOtherPatroni":                "/service/ledger/initialize,/service/ledger/m,/service/ledger/s",
	"TestOtherNode/kv":                "kv/many/5,kv/p,kv/s",
	"TestOtherNode/txn":               "txn/c,txn/d,txn/k",
	"TestOtherNode/watch":             "watch/many/3,watch/o,watch/past",
	"TestOtherNode/lease":             "lease/keys/b,lease/m,lease/stays",
	"TestOtherNode/lock":              "lock/do,lock/l,lock/many",
	"TestOtherNode/election":          "e,election/,f",
	"TestOtherNode/stm":               "stm/conflict,stm/d,stm/own",
	"TestOtherNode/namespace":         "ns/a/,ns/b,ns/other",
	"TestOtherNodeResumes":            "follow/2,follow/4,follow/6",
	"TestOtherNodePassesLocksRound":   "count/1,turns/,turns/1",
	"TestOtherPython/kv":              "kv/compact,kv/large,kv/prefix/1",
	"TestOtherPython/txn":             "txn/c,txn/d,txn/k",
	"TestOtherPython/watch":           "watch/gone,watch/o,watch/past",
	"TestOtherPython/lease":           "lease/keys/b,lease/m,m",
	"TestOtherPython/lock":            "lock,locks,queue/",
	"TestOtherPythonResumes":          "follow/2,follow/4,follow/6",
	"TestOtherPythonPassesLocksRound": "b,mutex0,n",
	"TestOtherNode/auth":              "app/k,b,other",
	"TestOtherNode/auth over TLS":     "app/k,b,other",
}

// splitFlags returns the flags that give the server of a test four shards, if all
// servers have them and its own flags don't tell.
func splitFlags(tb testing.TB, flags []string) []string {
	tb.Helper()
	if !FourShards() || slices.Contains(flags, SplitsFlag) {
		return nil
	}
	for name := tb.Name(); ; {
		if splits, ok := cuts[name]; ok {
			return []string{SplitsFlag, splits}
		}
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			return []string{SplitsFlag, otherSplits}
		}
		name = name[:i]
	}
}

// onFourShards returns the tests of a folder that CASES.md says run with four shards
// too, without those that need clients of other languages.
func onFourShards(t *testing.T, folder string) []string {
	t.Helper()
	table, err := os.ReadFile(filepath.Join("..", "cases", "CASES.md"))
	Must(t, "CASES.md", err)
	var tests []string
	row := regexp.MustCompile(`(?m)^\| [A-Z]\d\d \|.*\| 1, 4 \|$`)
	named := regexp.MustCompile("`e2e/" + folder + "\\.(Test\\w+)`")
	for _, line := range row.FindAll(table, -1) {
		for _, ref := range named.FindAllSubmatch(line, -1) {
			if name := string(ref[1]); !strings.HasPrefix(name, "TestOther") {
				tests = append(tests, name)
			}
		}
	}
	return tests
}

// RunOnFourShards runs the tests of a folder of e2e that CASES.md says run with four
// shards, and more of them, in that many processes: most tests wait most of their time.
// It is called by a test of that folder.
func RunOnFourShards(t *testing.T, folder string, processes int, more ...string) {
	t.Helper()
	tests := append(onFourShards(t, folder), more...)
	slices.Sort(tests)
	tests = slices.Compact(tests)
	if len(tests) < processes {
		t.Fatalf("tests %q", tests)
	}
	shares := make([][]string, processes)
	for i, name := range tests {
		shares[i%processes] = append(shares[i%processes], name)
	}
	path, err := Server()
	Must(t, path, err)
	outs, errs := make([][]byte, processes), make([]error, processes)
	var running sync.WaitGroup
	for i, share := range shares {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run", "^("+strings.Join(share, "|")+")$")
		cmd.Env = append(os.Environ(), fourShardsVariable+"=4", BinaryVariable+"="+path)
		running.Go(func() { outs[i], errs[i] = cmd.CombinedOutput() })
	}
	running.Wait()
	for i, share := range shares {
		passed := errs[i] == nil
		for _, name := range share {
			if !bytes.Contains(outs[i], []byte("--- PASS: "+name+" ")) {
				passed = false
				t.Errorf("%s did not pass; try it by %s=4 go test ./e2e/%s -run '^%s$'", name, fourShardsVariable, folder, name)
			}
		}
		if !passed {
			t.Errorf("%v: %s", errs[i], outs[i])
		}
	}
}

// OverShards is how the refusal of a write over several shards begins. Behind it comes where
// the shards are divided.
const OverShards = "latchkey: the keys of the request lie on several shards, and writes over several shards are switched off, or not known to all nodes yet"
