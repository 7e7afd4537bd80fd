package lease

import (
	"bytes"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func drawRecord(t *rapid.T) Record {
	ending := rapid.Bool().Draw(t, "ending")
	return Record{
		ID:          rapid.Int64().Draw(t, "id"),
		TTL:         rapid.Int64().Draw(t, "ttl"),
		Incarnation: rapid.Uint64().Draw(t, "incarnation"),
		Aging:       time.Duration(rapid.Int64Min(0).Draw(t, "aging")),
		Ending:      ending,
		Intact:      ending && rapid.Bool().Draw(t, "intact"),
	}
}

func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawRecord(t)
		b := appendRecord(nil, want)
		if len(b) > maxRecord {
			t.Fatalf("record takes %d bytes, more than %d", len(b), maxRecord)
		}
		got, err := decodeRecord(want.ID, b)
		if err != nil || got != want {
			t.Fatalf("decoded %+v, %v, want %+v", got, err, want)
		}
		for n := range b {
			if r, err := decodeRecord(want.ID, b[:n]); err == nil {
				t.Fatalf("first %d of %d bytes decode to %+v", n, len(b), r)
			}
		}
		if r, err := decodeRecord(want.ID, append(b, 0)); err == nil {
			t.Fatalf("a trailing byte decodes to %+v", r)
		}
	})
}

func TestRecordIsSmall(t *testing.T) {
	b := appendRecord(nil, Record{ID: math.MaxInt64, TTL: 60, Incarnation: 1_000_000})
	if len(b) > 8 {
		t.Errorf("a common record takes %d bytes", len(b))
	}
}

func TestRecordCorrupt(t *testing.T) {
	good := appendRecord(nil, Record{ID: 1, TTL: 60, Incarnation: 7, Aging: time.Second})
	for name, b := range map[string][]byte{
		"version":      append([]byte{recordVersion + 1}, good[1:]...),
		"flags":        append([]byte{recordVersion, 0x80}, good[2:]...),
		"long varint":  append([]byte{recordVersion, 0}, bytes.Repeat([]byte{0xff}, 11)...),
		"aging":        append([]byte{recordVersion, 0, 2, 1}, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1),
		"empty":        nil,
		"version only": {recordVersion},
	} {
		if r, err := decodeRecord(1, b); err == nil {
			t.Errorf("%s: decoded to %+v", name, r)
		}
	}
}

func TestRecordKeyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prefix := []byte("p/l")
		a, b := rapid.Int64().Draw(t, "a"), rapid.Int64().Draw(t, "b")
		ka, kb := appendRecordKey(nil, prefix, a), appendRecordKey(nil, prefix, b)
		if (a < b) != (bytes.Compare(ka, kb) < 0) {
			t.Fatalf("keys of %d and %d order otherwise", a, b)
		}
		id, err := decodeRecordKey(ka[len(prefix)+1:])
		if err != nil || id != a {
			t.Fatalf("decoded %d, %v, want %d", id, err, a)
		}
	})
}

func TestCounterRoundTrip(t *testing.T) {
	for _, want := range []uint64{0, 1, 127, 128, math.MaxUint64} {
		b := encodeCounter(want)
		got, err := decodeCounter(b)
		if err != nil || got != want {
			t.Errorf("decoded %d, %v, want %d", got, err, want)
		}
		for _, bad := range [][]byte{b[:len(b)-1], append(slices.Clone(b), 0), {9, 1}} {
			if n, err := decodeCounter(bad); err == nil {
				t.Errorf("%x decoded to %d", bad, n)
			}
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add(appendRecord(nil, Record{TTL: 60, Incarnation: 7, Aging: time.Second, Ending: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(1, b)
		if err != nil {
			return
		}
		again, err := decodeRecord(1, appendRecord(nil, r))
		if err != nil || again != r {
			t.Fatalf("%x decodes to %+v, which decodes to %+v, %v", b, r, again, err)
		}
	})
}
