package commitmodel

import (
	"fmt"
	"strings"
	"testing"
)

// What the scenarios are made of.
var (
	t1 = wide{node: 0, writes: keyA | keyB}
	t2 = wide{node: 1, writes: keyB | keyC}
	// t3 writes on the shard of c alone, if a has not been written.
	t3 = wide{node: 2, reads: keyA | keyC, writes: keyZ, unwritten: keyA}
	// t4 puts on its home whatever is there, and t5 holds that and the rest.
	t4 = wide{node: 0, writes: keyA | keyB, puts: true}
	t5 = wide{node: 1, writes: keyA | keyB}
	// t6 is as t4, with the other shard for its home, and t7 prepares that.
	t6 = wide{node: 1, writes: keyA | keyB, puts: true, at: 2}
	t7 = wide{node: 1, writes: keyA | keyB, at: 2}
	// The shares of either of crossed are kept apart by one of between: the transactions
	// meet nowhere.
	crossed = []wide{{node: 0, writes: keyA | keyY}, {node: 1, writes: keyB | keyX}}
	between = []narrow{{writes: keyA | keyX}, {writes: keyB | keyY}}
)

// ruleCases say in which scenario each rule is missed, and which promise is broken then.
var ruleCases = []struct {
	rule     rule
	promise  string
	scenario scenario
}{
	{oneID, atomicity, scenario{wide: []wide{t1}, tries: 2, faults: faults{timeouts: 1}}},
	{refuseBelowMarks, isolation, scenario{wide: []wide{t1, t1}, tries: 1, faults: faults{doubled: 2}}},
	{holdsAtApply, isolation, scenario{wide: []wide{t1}, narrow: []narrow{{writes: keyB}}, tries: 1}},
	{readsMeetHolds, isolation, scenario{wide: []wide{t1}, narrow: []narrow{{reads: keyB, writes: keyY}}, tries: 1}},
	{numberLast, isolation, scenario{wide: []wide{t1}, reads: []keySet{keyB}, tries: 1}},
	{commitNeedsHold, atomicity, scenario{wide: []wide{t1}, tries: 1, faults: faults{suspects: 1}}},
	{abortLeavesTomb, atomicity, scenario{wide: []wide{t1}, tries: 1, faults: faults{suspects: 1}}},
	{finishLeavesTomb, isolation, scenario{wide: []wide{t1}, tries: 1, faults: faults{doubled: 2}}},
	{outcomeStays, answers, scenario{wide: []wide{t1}, tries: 1, faults: faults{doubled: 1}}},
	{tombsUntilMarks, atomicity, scenario{wide: []wide{t1}, tries: 1, faults: faults{suspects: 1, changes: 1}}},
	{marksOfOpen, answers, scenario{wide: []wide{t1, t1}, tries: 1, faults: faults{suspects: 1, jumps: 1}}},
	{refusedAtDecide, atomicity, scenario{wide: []wide{t4}, tries: 1, faults: faults{suspects: 1}}},
	{meetsAtDecide, isolation, scenario{wide: []wide{t4, {node: 1, writes: keyA | keyC}}, tries: 1}},
	{epochAtDecide, rights, scenario{wide: []wide{t1}, tries: 1, fence: true}},
	{questionInLog, atomicity, scenario{wide: []wide{t1}, tries: 1, faults: faults{suspects: 1}}},
	{absenceOnlyHeld, answers, scenario{wide: []wide{t1}, tries: 1, faults: faults{jumps: 1}}},
	{releaseByAbort, atomicity, scenario{wide: []wide{t1}, tries: 2, faults: faults{timeouts: 1}}},
	{finishApplied, liveness, scenario{wide: []wide{t1}, tries: 1}},
	{agesInLine, liveness, scenario{wide: crossed, narrow: between, tries: 1, ages: true}},
	{olderWounds, liveness, scenario{wide: crossed, narrow: between, tries: 1, ages: true}},
	{writesWound, liveness, scenario{wide: crossed, narrow: between, tries: 1, ages: true}},
	{skippedNotEnded, leases, scenario{wide: []wide{t1}, tries: 1, lease: true}},
	{resolvedOfSpan, isolation, scenario{wide: []wide{t1}, narrow: []narrow{{writes: keyY}}, tries: 1}},
	{viewsCarryHolds, isolation, scenario{wide: []wide{t1}, reads: []keySet{keyB}, tries: 1}},
	{viewAfterPromise, isolation, scenario{wide: []wide{t1}, reads: []keySet{keyB}, tries: 1}},
	{readBelowHolds, isolation, scenario{wide: []wide{t1}, narrow: []narrow{{writes: keyY}}, reads: []keySet{keyB | keyY}, tries: 1}},
	{neverBelowH, isolation, scenario{wide: []wide{t1}, narrow: []narrow{{writes: keyX}}, reads: []keySet{keyB}, tries: 1}},
}

// Every rule is needed: in a scenario in which the protocol keeps all its promises, it breaks
// one without the rule.
func TestRules(t *testing.T) {
	kept := make(map[string]bool) // scenarios in which all rules keep all promises
	for _, tc := range ruleCases {
		t.Run(tc.rule.String(), func(t *testing.T) {
			if name := fmt.Sprint(tc.scenario); !kept[name] && !testing.Short() {
				v := tc.scenario.without().explore(true)
				if v.bad != "" {
					t.Fatalf("with all rules:\n%s", v)
				}
				kept[name] = true
				t.Logf("with all rules: %d states, %d steps deep", v.states, v.depth)
			}
			v := tc.scenario.without(tc.rule).explore(tc.promise == liveness)
			if !strings.HasPrefix(v.bad, tc.promise+":") {
				t.Fatalf("without the rule: %q in %d states\n%s", v.bad, v.states, v)
			}
			t.Logf("without the rule:\n%s", v)
		})
	}
}
