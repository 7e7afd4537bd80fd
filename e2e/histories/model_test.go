package histories

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// historyModel is the store as porcupine sees it: a write without an answer forks
// the state into the one where it happened and the one where it didn't.
func historyModel(start histState) porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{start} },
		Step: func(state, input, output any) []any {
			s, ok := state.(histState)
			in, okIn := input.(histInput)
			out, okOut := output.(histOutput)
			if !ok || !okIn || !okOut {
				return nil
			}
			next, want := s.apply(in)
			switch {
			case out.unknown && next != s:
				return []any{s, next}
			case out.unknown || out == want:
				return []any{next}
			}
			return nil
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
	}
	return model.ToModel()
}

// Whatever concurrent clients are answered, while the server is killed and started
// again, some single order of the whole keyspace explains it, to the last revision.
func TestHistories(t *testing.T) {
	t.Parallel()
	for _, shards := range historyShards {
		t.Run(strconv.Itoa(shards), func(t *testing.T) {
			s := harness.Serve(t, historyFlags(shards)...)
			for round := range harness.Sized(3, 100) {
				if !checkHistory(t, s, shards, round) {
					return
				}
			}
		})
	}
}

// historySplits divide the keys of histories among four shards: two pairs of data
// keys, and the locks.
const historySplits = "h/2,h/4,h/5"

// historyShards are the numbers of shards that histories are checked with.
var historyShards = []int{1, strings.Count(historySplits, ",") + 2}

// historyFlags returns the flags of a server of so many shards, with more.
func historyFlags(shards int, more ...string) []string {
	splits := ""
	if shards > 1 {
		splits = historySplits
	}
	return append([]string{harness.SplitsFlag, splits}, more...)
}

// checkHistory runs and checks one history and reports whether it is right.
func checkHistory(t *testing.T, s *harness.Served, shards, round int) bool {
	t.Helper()
	seed := harness.Seed(t, "./e2e/histories", round)
	start := histState{rev: s.Revision()}
	for _, kv := range s.Read(harness.UnderPrefix("h/", rangeAll())).Kvs {
		key, e, err := histEntryOf(kv)
		if err != nil {
			t.Fatal(err)
		}
		start.kv[key] = e
	}
	h := runHistory(t, s, seed, histSize{clients: 6, calls: 100, kills: 2, shards: shards})
	unanswered := h.unanswered()
	log := eventLog(s, start.rev, s.Revision())
	h.settle(log)
	unknown := h.unanswered()
	if text := h.headerFault(); text != "" {
		t.Error(text)
	}
	h.count(start.rev, slices.Sorted(maps.Keys(log)))
	ops := make([]porcupine.Operation, len(h.ops))
	for i, op := range h.ops {
		ops[i] = porcupine.Operation{ClientId: op.client, Input: op.in, Output: op.out, Call: op.begin, Return: op.ended}
	}
	begin := time.Now()
	verdict, info := porcupine.CheckOperationsVerbose(historyModel(start), ops, harness.LongWait)
	t.Logf("round %d: %d calls, %d without an answer, %d of unknown outcome, checked in %v",
		round, len(ops), unanswered, unknown, time.Since(begin))
	if verdict != porcupine.Ok {
		path := t.ArtifactDir() + "/history.html"
		t.Errorf("round %d: verdict %s, history in %s: %v", round, verdict, path, porcupine.VisualizePath(historyModel(start), info, path))
	}
	return !t.Failed()
}

// The model tells wrong histories from right ones.
func TestHistoryModel(t *testing.T) {
	start := histState{rev: 1}
	put := histInput{kind: histPut, key: 1, value: 7}
	get := histInput{kind: histGet, key: 1}
	one := [historyKeys]histEntry{1: {value: 7, create: 2, mod: 2, version: 1}}
	answer := func(rev int64, got [historyKeys]histEntry) histOutput { return histOutput{rev: rev, got: got} }
	op := func(in histInput, out histOutput, begin, ended int64) porcupine.Operation {
		return porcupine.Operation{Input: in, Output: out, Call: begin, Return: ended}
	}
	done, lost := histOutput{rev: 2, done: true}, histOutput{unknown: true}
	none := [historyKeys]histEntry{}
	for _, tt := range []struct {
		name string
		ops  []porcupine.Operation
		want porcupine.CheckResult
	}{
		{"in turn", []porcupine.Operation{op(put, done, 0, 1), op(get, answer(2, one), 2, 3)}, porcupine.Ok},
		{"read of the past", []porcupine.Operation{op(put, done, 0, 1), op(get, answer(1, none), 2, 3)}, porcupine.Illegal},
		{"at a time", []porcupine.Operation{op(put, done, 0, 5), op(get, answer(1, none), 2, 3)}, porcupine.Ok},
		{"wrong revision", []porcupine.Operation{op(put, done, 0, 1), op(get, answer(3, one), 2, 3)}, porcupine.Illegal},
		{"lost and applied", []porcupine.Operation{op(put, lost, 0, math.MaxInt64), op(get, answer(2, one), 2, 3)}, porcupine.Ok},
		{"lost and not", []porcupine.Operation{op(put, lost, 0, math.MaxInt64), op(get, answer(1, none), 2, 3)}, porcupine.Ok},
		{
			"lost, applied late", []porcupine.Operation{
				op(put, lost, 0, math.MaxInt64), op(get, answer(1, none), 2, 3), op(get, answer(2, one), 4, 5),
			}, porcupine.Ok,
		},
		{
			"lost, applied and undone", []porcupine.Operation{
				op(put, lost, 0, math.MaxInt64), op(get, answer(2, one), 2, 3), op(get, answer(1, none), 4, 5),
			}, porcupine.Illegal,
		},
	} {
		if got := porcupine.CheckOperationsTimeout(historyModel(start), tt.ops, harness.LongWait); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// Revisions that leave gaps are counted before the model sees them, and headers are
// compared as they are.
func TestHistoryCount(t *testing.T) {
	one := [historyKeys]histEntry{1: {value: 7, create: 10, mod: 10, version: 1}}
	two := [historyKeys]histEntry{1: {value: 8, create: 10, mod: 20, version: 2}}
	none := [historyKeys]histEntry{}
	get := func(begin, rev int64, got [historyKeys]histEntry) histOp {
		return histOp{in: histInput{kind: histGet, key: 1}, out: histOutput{rev: rev, got: got}, begin: begin, ended: begin + 1}
	}
	put := histOp{in: histInput{kind: histPut, key: 1, value: 7}, out: histOutput{rev: 10, done: true}, begin: 2, ended: 6}
	swap := histOp{in: histInput{kind: histSwap, key: 1, value: 8, rev: 10}, out: histOutput{rev: 20, done: true}, begin: 8, ended: 12}
	for _, tt := range []struct {
		name    string
		ops     []histOp
		ordered bool
		want    porcupine.CheckResult
	}{
		{"in order", []histOp{get(0, 3, none), put, get(7, 12, one), swap, get(14, 25, two)}, true, porcupine.Ok},
		{"a change not seen", []histOp{put, get(7, 12, none), swap}, true, porcupine.Illegal},
		{"a change seen too early", []histOp{put, get(3, 9, one), swap}, true, porcupine.Illegal},
		{"a header that fell", []histOp{get(0, 5, none), get(2, 4, none), put, swap}, false, porcupine.Ok},
		{"a change at a revision that was shown", []histOp{get(0, 10, none), put, swap}, false, porcupine.Illegal},
		{"a change of no version", []histOp{put, {in: histInput{kind: histSwap, key: 1, value: 8, rev: 11}, out: swap.out, begin: 8, ended: 12}}, true, porcupine.Illegal},
	} {
		h := &history{t: t, ops: tt.ops}
		if text := h.headerFault(); (text == "") != tt.ordered {
			t.Errorf("%s: %q", tt.name, text)
		}
		h.count(1, []int64{10, 20})
		var ops []porcupine.Operation
		for _, op := range h.ops {
			ops = append(ops, porcupine.Operation{ClientId: int(op.begin), Input: op.in, Output: op.out, Call: op.begin, Return: op.ended})
		}
		if got := porcupine.CheckOperationsTimeout(historyModel(histState{rev: 1}), ops, harness.LongWait); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
