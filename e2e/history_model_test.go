package e2e

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
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
// again, some single order explains it, to the last revision.
func TestHistories(t *testing.T) {
	s := serve(t)
	for round := range sized(4, 100) {
		seed := historySeed(t, round)
		start := histState{rev: s.rev()}
		for _, kv := range s.read(underPrefix("h/", rangeAll())).Kvs {
			key, e, err := histEntryOf(kv)
			if err != nil {
				t.Fatal(err)
			}
			start.kv[key] = e
		}
		h := runHistory(t, s, seed, histSize{clients: 6, calls: 100, kills: 2})
		unanswered := h.unanswered()
		h.settle(s.eventLog(start.rev, s.rev()))
		unknown := h.unanswered()
		ops := make([]porcupine.Operation, len(h.ops))
		for i, op := range h.ops {
			ops[i] = porcupine.Operation{ClientId: op.client, Input: op.in, Output: op.out, Call: op.begin, Return: op.ended}
		}
		begin := time.Now()
		verdict, info := porcupine.CheckOperationsVerbose(historyModel(start), ops, longWait)
		t.Logf("round %d: %d calls, %d without an answer, %d of unknown outcome, checked in %v",
			round, len(ops), unanswered, unknown, time.Since(begin))
		if verdict != porcupine.Ok {
			path := t.ArtifactDir() + "/history.html"
			t.Errorf("round %d: verdict %s, history in %s: %v", round, verdict, path, porcupine.VisualizePath(historyModel(start), info, path))
			return
		}
	}
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
		if got := porcupine.CheckOperationsTimeout(historyModel(start), tt.ops, longWait); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
