package api

import (
	"errors"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"pgregory.net/rapid"
)

func TestCheckOverlap(t *testing.T) {
	for name, tc := range map[string]struct {
		branch []*pb.RequestOp
		dup    bool
	}{
		"two puts":                     {ops(opPut("a"), opPut("b")), false},
		"same put":                     {ops(opPut("a"), opGet("x"), opPut("a")), true},
		"put in deletion":              {ops(opDel("a", "c"), opPut("b")), true},
		"deletion after put":           {ops(opPut("b"), opDel("a", "c")), true},
		"put at the end":               {ops(opDel("a", "c"), opPut("c")), false},
		"put at the start":             {ops(opDel("a", "c"), opPut("a")), true},
		"deletion of the key":          {ops(opDel("a", ""), opPut("a")), true},
		"deletion of a longer key":     {ops(opDel("a", ""), opPut("a\x00")), false},
		"deletion from key on":         {ops(opDel("a", "\x00"), opPut("z")), false},
		"inverted deletion":            {ops(opDel("c", "a"), opPut("b")), false},
		"deletions overlap":            {ops(opDel("a", "c"), opDel("b", "d")), false},
		"nested put":                   {ops(opPut("a"), opTxn(ops(opPut("a")), nil)), true},
		"nested else put":              {ops(opPut("a"), opTxn(nil, ops(opPut("a")))), true},
		"nested then and else":         {ops(opTxn(ops(opPut("a")), ops(opPut("a")))), false},
		"nested then and else deleted": {ops(opTxn(ops(opPut("a")), ops(opDel("a", "")))), false},
		"two nested":                   {ops(opTxn(ops(opPut("a")), nil), opTxn(nil, ops(opPut("a")))), true},
		"nested put, deletion":         {ops(opTxn(ops(opPut("b")), nil), opDel("a", "c")), true},
		"nested deletion, put":         {ops(opTxn(ops(opDel("a", "c")), nil), opPut("b")), true},
		"nested deletion, nested put":  {ops(opTxn(ops(opDel("a", "c")), nil), opTxn(ops(opPut("b")), nil)), true},
		"nested put, nested deletion":  {ops(opTxn(ops(opPut("b")), nil), opTxn(ops(opDel("a", "c")), nil)), false},
		"dup inside nested":            {ops(opTxn(nil, ops(opPut("a"), opPut("a")))), true},
		"twice nested":                 {ops(opPut("a"), opTxn(ops(opTxn(nil, ops(opPut("a")))), nil)), true},
	} {
		t.Run(name, func(t *testing.T) {
			want := error(nil)
			if tc.dup {
				want = errDuplicateKey
			}
			if got := checkOverlap(tc.branch); !errors.Is(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// slowSet is a writeSet without any structure.
type slowSet struct {
	puts []string
	dels []*pb.DeleteRangeRequest
}

// slowOverlap is the rule, spelled out: false for a key that is written twice.
func slowOverlap(branch []*pb.RequestOp) (slowSet, bool) {
	var w slowSet
	for _, op := range branch {
		if d := op.GetRequestDeleteRange(); d != nil {
			w.dels = append(w.dels, d)
		}
	}
	for _, op := range branch {
		t := op.GetRequestTxn()
		if t == nil {
			continue
		}
		then, ok := slowOverlap(t.GetSuccess())
		els, ok2 := slowOverlap(t.GetFailure())
		if !ok || !ok2 {
			return w, false
		}
		both := append(then.puts, els.puts...)
		for _, key := range both {
			if w.holds(key) {
				return w, false
			}
		}
		w.puts = append(w.puts, both...)
		w.dels = append(append(w.dels, then.dels...), els.dels...)
	}
	for _, op := range branch {
		p := op.GetRequestPut()
		if p == nil {
			continue
		}
		if w.holds(string(p.GetKey())) {
			return w, false
		}
		w.puts = append(w.puts, string(p.GetKey()))
	}
	return w, true
}

func (w *slowSet) holds(key string) bool {
	for _, p := range w.puts {
		if p == key {
			return true
		}
	}
	for _, d := range w.dels {
		from, end := string(d.GetKey()), string(d.GetRangeEnd())
		if key == from && end == "" || key >= from && key < end {
			return true
		}
	}
	return false
}

func TestCheckOverlapModel(t *testing.T) {
	key := rapid.SampledFrom([]string{"\x00", "a", "a\x00", "b", "c", "d", "e", "f", "\xff"})
	end := rapid.SampledFrom([]string{"", "", "\x00", "a", "b", "c", "e", "\xff"})
	var branch func(depth int) *rapid.Generator[[]*pb.RequestOp]
	branch = func(depth int) *rapid.Generator[[]*pb.RequestOp] {
		op := rapid.Custom(func(t *rapid.T) *pb.RequestOp {
			switch k := rapid.IntRange(0, 5).Draw(t, "kind"); {
			case k == 0:
				return opGet(key.Draw(t, "key"))
			case k <= 2:
				return opPut(key.Draw(t, "key"))
			case k == 3 || depth == 0:
				return opDel(key.Draw(t, "key"), end.Draw(t, "end"))
			default:
				return opTxn(branch(depth-1).Draw(t, "then"), branch(depth-1).Draw(t, "else"))
			}
		})
		return rapid.SliceOfN(op, 0, 4)
	}
	rapid.Check(t, func(t *rapid.T) {
		b := branch(3).Draw(t, "branch")
		_, ok := slowOverlap(b)
		if got := checkOverlap(b); (got == nil) != ok {
			t.Fatalf("checkOverlap = %v, the rule says %v", got, ok)
		}
	})
}

// BenchmarkCheckOverlap shows the cost of the usual transaction of a lock and of
// one that needs the bookkeeping.
func BenchmarkCheckOverlap(b *testing.B) {
	for name, branch := range map[string][]*pb.RequestOp{
		"lock": ops(opPut("lock/a"), opGet("lock/")),
		"full": append(ops(opDel("a", "b")), many(100)...),
		"puts": func() []*pb.RequestOp {
			var out []*pb.RequestOp
			for _, op := range many(128) {
				out = append(out, opPut(string(op.GetRequestRange().GetKey())))
			}
			return out
		}(),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := checkOverlap(branch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
