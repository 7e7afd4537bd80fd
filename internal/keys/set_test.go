package keys

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// drawSpan draws spans of short keys, empty ones among them.
func drawSpan(t *rapid.T) Span {
	key := rapid.SliceOfN(rapid.ByteRange(0, 2), 0, 3)
	return Span{Start: key.Draw(t, "start"), End: key.Draw(t, "end")}
}

// A set contains what one of its spans contains, in a form of its own, and comes
// back from its encoding.
func TestSetModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spans := rapid.SliceOfN(rapid.Custom(drawSpan), 0, 6).Draw(t, "spans")
		s := NewSet(spans...)
		for i, span := range s {
			if span.Empty() {
				t.Fatalf("span %d of %v is empty", i, s)
			}
			if i > 0 && (s[i-1].Unbounded() || bytes.Compare(s[i-1].End, span.Start) >= 0) {
				t.Fatalf("spans %d and %d of %v touch", i-1, i, s)
			}
		}
		for _, key := range rapid.SliceOfN(rapid.SliceOfN(rapid.ByteRange(0, 3), 0, 4), 20, 20).Draw(t, "keys") {
			want := false
			for _, span := range spans {
				want = want || span.Contains(key)
			}
			if s.Contains(key) != want {
				t.Fatalf("%v of %v contains %q: %v", s, spans, key, !want)
			}
		}
		got, rest, err := CutSet(append(AppendSet(nil, s), "rest"...))
		if err != nil || string(rest) != "rest" {
			t.Fatalf("decoding left %q: %v", rest, err)
		}
		if d := cmp.Diff(s, got, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("after decoding (-want +got):\n%s", d)
		}
	})
}

func TestCutSetRefusesTornBytes(t *testing.T) {
	whole := AppendSet(nil, NewSet(Point([]byte("a")), Span{Start: []byte("b"), End: PrefixEnd([]byte("b"))}))
	for n := range whole {
		if s, _, err := CutSet(whole[:n]); err == nil {
			t.Errorf("%d of %d bytes are read as %v", n, len(whole), s)
		}
	}
}
