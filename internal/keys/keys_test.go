package keys

import (
	"bytes"
	"cmp"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// awkward draws short keys over bytes that encodings and prefixes trip over.
func awkward() *rapid.Generator[[]byte] {
	return rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, '/', 'a', 0xfe, 0xff}), 0, 6)
}

func TestFromRange(t *testing.T) {
	tests := []struct {
		key, end       string
		in, out        []string
		empty, isPoint bool
		isPrefix       bool
	}{
		{key: "a", end: "", in: []string{"a"}, out: []string{"", "a\x00", "b"}, isPoint: true},
		{key: "a", end: "\x00", in: []string{"a", "a\x00", "b", "\xff\xff"}, out: []string{"", "\x00", "Z"}},
		{key: "\x00", end: "\x00", in: []string{"\x00", "a", "\xff"}},
		{key: "a", end: "b", in: []string{"a", "a/", "a\xff"}, out: []string{"b", "A"}, isPrefix: true},
		{key: "a", end: "c", in: []string{"a", "b"}, out: []string{"c"}},
		{key: "b", end: "a", out: []string{"a", "b", "aa"}, empty: true},
		{key: "a", end: "a", out: []string{"a"}, empty: true},
	}
	for _, tt := range tests {
		s := FromRange([]byte(tt.key), []byte(tt.end))
		if s.Empty() != tt.empty || s.IsPoint() != tt.isPoint || s.IsPrefix() != tt.isPrefix {
			t.Errorf("FromRange(%q, %q) = %v: empty %v, point %v, prefix %v", tt.key, tt.end, s, s.Empty(), s.IsPoint(), s.IsPrefix())
		}
		for _, k := range tt.in {
			if !s.Contains([]byte(k)) {
				t.Errorf("%v lacks %q", s, k)
			}
		}
		for _, k := range tt.out {
			if s.Contains([]byte(k)) {
				t.Errorf("%v holds %q", s, k)
			}
		}
		if got := FromRange(s.Start, s.RangeEnd()); !got.Equal(s) {
			t.Errorf("FromRange(RangeEnd()) of %v = %v", s, got)
		}
	}
}

func TestDirectory(t *testing.T) {
	for key, want := range map[string]string{"": "", "a": "", "/": "/", "a/b": "a/", "a/b/": "a/b/", "/x/y": "/x/"} {
		if got := Directory([]byte(key)); string(got) != want {
			t.Errorf("Directory(%q) = %q, want %q", key, got, want)
		}
	}
}

func TestPrefixEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prefix, key := awkward().Draw(t, "prefix"), awkward().Draw(t, "key")
		s := Span{Start: prefix, End: PrefixEnd(prefix)}
		if s.Contains(key) != bytes.HasPrefix(key, prefix) {
			t.Fatalf("%v contains %q: %v", s, key, s.Contains(key))
		}
		if !s.IsPrefix() {
			t.Fatalf("%v is no prefix", s)
		}
	})
}

func TestSpanAlgebra(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		span := func(name string) Span {
			return FromRange(awkward().Draw(t, name), awkward().Draw(t, name+" end"))
		}
		a, b, key := span("a"), span("b"), awkward().Draw(t, "key")
		both := a.Contains(key) && b.Contains(key)
		if got := a.Intersect(b).Contains(key); got != both {
			t.Fatalf("%v ∩ %v contains %q: %v", a, b, key, got)
		}
		if both && !a.Overlaps(b) {
			t.Fatalf("%v and %v share %q but don't overlap", a, b, key)
		}
		if a.Empty() && a.Contains(key) {
			t.Fatalf("empty %v contains %q", a, key)
		}
		if a.Covers(b) && b.Contains(key) && !a.Contains(key) {
			t.Fatalf("%v covers %v but lacks %q", a, b, key)
		}
		if a.IsPoint() && a.Contains(key) != bytes.Equal(a.Start, key) {
			t.Fatalf("point %v contains %q", a, key)
		}
		if a.IsPrefix() && a.Contains(key) != bytes.HasPrefix(key, a.Start) {
			t.Fatalf("prefix %v contains %q: %v", a, key, a.Contains(key))
		}
	})
}

func TestEscapedOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := awkward().Draw(t, "a"), awkward().Draw(t, "b")
		// Whatever follows the key must not disturb the order of keys.
		ea := append(AppendEscaped(nil, a), awkward().Draw(t, "after a")...)
		eb := append(AppendEscaped(nil, b), awkward().Draw(t, "after b")...)
		if want := bytes.Compare(a, b); want != 0 && bytes.Compare(ea, eb) != want {
			t.Fatalf("%q and %q sort %d, escaped %q and %q don't", a, b, want, ea, eb)
		}
		if n := EscapedLen(a); len(AppendEscaped(nil, a)) != n {
			t.Fatalf("EscapedLen(%q) = %d", a, n)
		}
	})
}

func TestEscapedRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key, tail := awkward().Draw(t, "key"), awkward().Draw(t, "tail")
		enc := append(AppendEscaped([]byte("p"), key), tail...)
		got, rest, err := Unescape([]byte("q"), enc[1:])
		if err != nil || string(got) != "q"+string(key) || !bytes.Equal(rest, tail) {
			t.Fatalf("Unescape(%q) = %q, %q, %v", enc[1:], got, rest, err)
		}
	})
}

func TestIntegers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Int64().Draw(t, "a"), rapid.Int64().Draw(t, "b")
		if got := bytes.Compare(AppendInt64(nil, a), AppendInt64(nil, b)); got != cmp.Compare(a, b) {
			t.Fatalf("ascending %d, %d: %d", a, b, got)
		}
		if got := bytes.Compare(AppendInt64Desc(nil, a), AppendInt64Desc(nil, b)); got != cmp.Compare(b, a) {
			t.Fatalf("descending %d, %d: %d", a, b, got)
		}
		c, d := rapid.Uint32().Draw(t, "c"), rapid.Uint32().Draw(t, "d")
		if got := bytes.Compare(AppendUint32(nil, c), AppendUint32(nil, d)); got != cmp.Compare(c, d) {
			t.Fatalf("ascending %d, %d: %d", c, d, got)
		}
		if got := bytes.Compare(AppendUint32Desc(nil, c), AppendUint32Desc(nil, d)); got != cmp.Compare(d, c) {
			t.Fatalf("descending %d, %d: %d", c, d, got)
		}
		enc := AppendUint32Desc(AppendUint32(AppendInt64Desc(AppendInt64(nil, a), b), c), d)
		ga, enc, err1 := CutInt64(enc)
		gb, enc, err2 := CutInt64Desc(enc)
		gc, enc, err3 := CutUint32(enc)
		gd, enc, err4 := CutUint32Desc(enc)
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			t.Fatal(err)
		}
		if ga != a || gb != b || gc != c || gd != d || len(enc) != 0 {
			t.Fatalf("decoded %d %d %d %d and %d bytes", ga, gb, gc, gd, len(enc))
		}
	})
}

func TestShortIntegers(t *testing.T) {
	short := []byte{1, 2, 3}
	_, _, err1 := CutInt64(short)
	_, _, err2 := CutInt64Desc(short)
	_, _, err3 := CutUint32(short)
	_, _, err4 := CutUint32Desc(short)
	for _, err := range []error{err1, err2, err3, err4} {
		if !errors.Is(err, ErrEncoding) {
			t.Errorf("short input: %v", err)
		}
	}
}

// FuzzUnescape checks that decoding never reads beyond its input and accepts
// exactly what encoding writes.
func FuzzUnescape(f *testing.F) {
	f.Add([]byte("a\x00\x01"))
	f.Add([]byte("a\x00\xffb\x00\x01rest"))
	f.Add([]byte("\x00"))
	f.Add([]byte("\x00\x02"))
	f.Fuzz(func(t *testing.T, src []byte) {
		key, rest, err := Unescape(nil, src)
		if err != nil {
			if !errors.Is(err, ErrEncoding) {
				t.Fatalf("unexpected error %v", err)
			}
			return
		}
		if again := append(AppendEscaped(nil, key), rest...); !bytes.Equal(again, src) {
			t.Fatalf("%q decodes to %q and %q", src, key, rest)
		}
	})
}

// FuzzFromRange checks etcd's range_end rules against their wording.
func FuzzFromRange(f *testing.F) {
	f.Add([]byte("a"), []byte(""), []byte("a"))
	f.Add([]byte("a"), []byte("\x00"), []byte("b"))
	f.Add([]byte("b"), []byte("a"), []byte("aa"))
	f.Fuzz(func(t *testing.T, key, end, probe []byte) {
		var want bool
		switch {
		case len(end) == 0:
			want = bytes.Equal(key, probe)
		case string(end) == "\x00":
			want = bytes.Compare(probe, key) >= 0
		default:
			want = bytes.Compare(probe, key) >= 0 && bytes.Compare(probe, end) < 0
		}
		if s := FromRange(key, end); s.Contains(probe) != want {
			t.Fatalf("FromRange(%q, %q) = %v, contains %q: %v", key, end, s, probe, !want)
		}
	})
}
