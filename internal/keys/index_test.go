package keys

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// An index finds what a look at each entry finds, and a copy is not touched by what becomes of the other.
func TestIndex(t *testing.T) {
	t.Parallel()
	type entered struct {
		span Span
		name string
		e    *Entry[string]
	}
	draw := func(t *rapid.T) Span {
		key := rapid.SliceOfN(rapid.ByteRange(0, 2), 0, 3)
		if rapid.Bool().Draw(t, "point") {
			return Point(key.Draw(t, "key"))
		}
		return Span{Start: key.Draw(t, "start"), End: key.Draw(t, "end")}
	}
	check := func(t *rapid.T, x *Index[string], in []entered) {
		span := draw(t)
		var want, got []string
		for _, i := range in {
			if i.span.Overlaps(span) {
				want = append(want, i.name)
			}
		}
		x.Find(span, func(name string) bool {
			got = append(got, name)
			return false
		})
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Fatalf("%v has %q, want %q", span, got, want)
		}
		asked := 0
		found := x.Find(span, func(string) bool {
			asked++
			return true
		})
		if found != (len(want) > 0) || asked > 1 {
			t.Fatalf("%v is found: %v, after %d of %q", span, found, asked, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		x, n := NewIndex[string](), 0
		var in, copied []entered
		c := x.Copy()
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				n++
				i := entered{span: draw(t), name: fmt.Sprint(n)}
				i.e = x.Add(i.span, i.name)
				in = append(in, i)
			},
			"remove": func(t *rapid.T) {
				if len(in) > 0 {
					at := rapid.IntRange(0, len(in)-1).Draw(t, "which")
					x.Remove(in[at].e)
					in = slices.Delete(in, at, at+1)
				}
			},
			"copy": func(*rapid.T) { c, copied = x.Copy(), slices.Clone(in) },
			"": func(t *rapid.T) {
				check(t, x, in)
				check(t, c, copied)
			},
		})
	})
}
