package sim

import (
	"testing"

	"github.com/anishathalye/porcupine"
)

// The checkers take what may be for good, and find what they are for.

func TestBankChecker(t *testing.T) {
	b := &bank{accounts: []string{"1", "2"}, each: 10, receipts: map[string]moved{"r1": {"1", "2", 3}, "r2": {"2", "1", 5}}}
	for name, tc := range map[string]struct {
		snapshot
		good bool
	}{
		"nothing":            {snapshot{values: map[string]string{"1": "10", "2": "10"}}, true},
		"one":                {snapshot{values: map[string]string{"1": "7", "2": "13", "r1": ""}}, true},
		"both":               {snapshot{values: map[string]string{"1": "12", "2": "8", "r1": "", "r2": ""}}, true},
		"before the opening": {snapshot{stale: true}, true},
		"missing":            {snapshot{}, false},
		"half":               {snapshot{values: map[string]string{"1": "7", "2": "10", "r1": ""}}, false},
		"without a receipt":  {snapshot{values: map[string]string{"1": "7", "2": "13"}}, false},
		"only the receipt":   {snapshot{values: map[string]string{"1": "10", "2": "10", "r1": ""}}, false},
		"a lost update":      {snapshot{values: map[string]string{"1": "15", "2": "5", "r1": "", "r2": ""}}, false},
		"an account gone":    {snapshot{values: map[string]string{"1": "10"}}, false},
		"nobody's":           {snapshot{values: map[string]string{"1": "10", "2": "10", "r3": ""}}, false},
	} {
		if err := b.check(tc.snapshot); (err == nil) != tc.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestInsertionChecker(t *testing.T) {
	all := []inserted{
		{attempted{"first", 1, 2, answered}, 2},
		{attempted{"second", 3, 4, answered}, 1},
		{attempted{"beside", 3, 9, unknown}, 2},
		{attempted{"refused", 1, 2, refused}, 1},
	}
	for name, tc := range map[string]struct {
		begin, end int64
		stale      bool
		seen       map[string]int
		good       bool
	}{
		"all":                {5, 6, false, map[string]int{"first": 2, "second": 1, "beside": 2}, true},
		"without an unknown": {5, 6, false, map[string]int{"first": 2, "second": 1}, true},
		"concurrent":         {1, 6, false, map[string]int{}, true},
		"stale":              {5, 6, true, map[string]int{"first": 2}, true},
		"half":               {5, 6, false, map[string]int{"first": 1, "second": 1}, false},
		"half of an unknown": {5, 6, false, map[string]int{"first": 2, "second": 1, "beside": 1}, false},
		"missed":             {5, 6, false, map[string]int{"first": 2}, false},
		"causal reverse":     {1, 6, false, map[string]int{"second": 1}, false},
		"a stale reverse":    {5, 6, true, map[string]int{"second": 1}, false},
		"refused":            {5, 6, false, map[string]int{"first": 2, "second": 1, "refused": 1}, false},
		"from the future":    {1, 2, false, map[string]int{"first": 2, "second": 1}, false},
	} {
		err := checkInsertions(all, []snapshot{{begin: tc.begin, end: tc.end, stale: tc.stale}}, []map[string]int{tc.seen})
		if (err == nil) != tc.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestForkChecker(t *testing.T) {
	x, y, both := map[string]bool{"x": true}, map[string]bool{"y": true}, map[string]bool{"x": true, "y": true}
	if err := checkForks([]map[string]bool{both, {}, x, x, both}); err != nil {
		t.Error(err)
	}
	if err := checkForks([]map[string]bool{both, {}, x, y}); err == nil {
		t.Error("a long fork was taken for an order")
	}
}

func TestRegistersModel(t *testing.T) {
	write := func(at int64, kv ...string) porcupine.Operation {
		in := registersTxn{writes: make(map[string]string)}
		for i := 0; i < len(kv); i += 2 {
			in.writes[kv[i]] = kv[i+1]
		}
		return porcupine.Operation{ClientId: int(at), Input: in, Output: registersSeen{succeeded: true}, Call: at, Return: at + 1}
	}
	read := func(at int64, kv ...string) porcupine.Operation {
		in, out := registersTxn{}, registersSeen{succeeded: true, values: make(map[string]string)}
		for i := 0; i < len(kv); i += 2 {
			in.reads = append(in.reads, kv[i])
			out.values[kv[i]] = kv[i+1]
		}
		return porcupine.Operation{ClientId: int(at), Input: in, Output: out, Call: at, Return: at + 1}
	}
	guarded := func(at int64, succeeded bool, guard, equals string, kv ...string) porcupine.Operation {
		o := write(at, kv...)
		in, _ := o.Input.(registersTxn)
		in.guard, in.equals = guard, equals
		o.Input, o.Output = in, registersSeen{succeeded: succeeded}
		return o
	}
	failed := func(at int64, guard, equals string, reads ...string) porcupine.Operation {
		return porcupine.Operation{
			ClientId: int(at), Input: registersTxn{guard: guard, equals: equals, reads: reads}, Output: registersSeen{}, Call: at, Return: at + 1,
		}
	}
	inDoubt := func(o porcupine.Operation) porcupine.Operation {
		o.Output, o.Return = registersSeen{unknown: true}, 1<<40
		return o
	}
	for name, tc := range map[string]struct {
		ops  []porcupine.Operation
		good bool
	}{
		"both written":      {[]porcupine.Operation{write(1, "x", "1", "y", "1"), read(3, "x", "1", "y", "1")}, true},
		"guarded":           {[]porcupine.Operation{write(1, "x", "1"), guarded(3, true, "x", "1", "y", "2"), read(5, "x", "1", "y", "2")}, true},
		"in doubt":          {[]porcupine.Operation{inDoubt(write(1, "x", "1", "y", "1")), read(3, "x", "", "y", ""), read(5, "x", "1", "y", "1")}, true},
		"a failed guard":    {[]porcupine.Operation{write(1, "x", "1"), failed(3, "x", "", "x")}, true},
		"half written":      {[]porcupine.Operation{write(1, "x", "1", "y", "1"), read(3, "x", "1", "y", "")}, false},
		"half in doubt":     {[]porcupine.Operation{inDoubt(write(1, "x", "1", "y", "1")), read(3, "x", "1", "y", "")}, false},
		"in doubt, undone":  {[]porcupine.Operation{inDoubt(write(1, "x", "1")), read(3, "x", "1"), read(5, "x", "")}, false},
		"a broken guard":    {[]porcupine.Operation{write(1, "x", "1"), guarded(3, true, "x", "", "y", "2")}, false},
		"a guard that held": {[]porcupine.Operation{write(1, "x", "1"), guarded(3, false, "x", "1", "y", "2")}, false},
	} {
		if porcupine.CheckOperations(registers(), tc.ops) != tc.good {
			t.Errorf("%s: want good %v", name, tc.good)
		}
	}
}
