package placement

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// Locate agrees with asking every piece.
func TestLocate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		starts := rapid.SliceOfNDistinct(rapid.SliceOfN(rapid.ByteRange(0, 3), 1, 3), 0, 6, func(b []byte) string { return string(b) }).Draw(t, "starts")
		m := Map{{Start: []byte{}, Shard: 0}}
		for len(m) <= len(starts) {
			var least []byte
			for _, s := range starts {
				if bytes.Compare(s, m[len(m)-1].Start) > 0 && (least == nil || bytes.Compare(s, least) < 0) {
					least = s
				}
			}
			m = append(m, Piece{Start: least, Shard: uint64(len(m))})
		}
		start := rapid.SliceOfN(rapid.ByteRange(0, 3), 0, 3).Draw(t, "start")
		end := rapid.SliceOfN(rapid.ByteRange(0, 3), 0, 3).Draw(t, "end")
		if len(end) > 0 && bytes.Compare(start, end) >= 0 {
			return
		}
		var want []Piece
		for i, p := range m {
			below := len(end) > 0 && bytes.Compare(p.Start, end) >= 0
			above := i+1 < len(m) && bytes.Compare(m[i+1].Start, start) <= 0
			if !below && !above {
				want = append(want, p)
			}
		}
		if diff := cmp.Diff(want, m.Locate(start, end)); diff != "" {
			t.Fatalf("pieces of [%x, %x) (-want +got):\n%s", start, end, diff)
		}
	})
}

func TestPositionsAreOrdered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SliceOf(rapid.Byte()).Draw(t, "a")
		b := rapid.SliceOf(rapid.Byte()).Draw(t, "b")
		if bytes.Compare(keys.Position(a), keys.Position(b)) != bytes.Compare(a, b) {
			t.Fatal("keys and positions differ in order")
		}
		lease := keys.LeasePosition(rapid.Int64().Draw(t, "lease"))
		if bytes.Compare(lease, keys.Position(a)) >= 0 || bytes.Compare(keys.Position(a), keys.EndPosition(nil)) >= 0 {
			t.Fatal("leases come before keys, keys before the end")
		}
	})
}
