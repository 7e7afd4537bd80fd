package raft

import "testing"

// BenchmarkEntry measures an entry of 100 commands of 300 bytes: writing it, and
// taking it apart.
func BenchmarkEntry(b *testing.B) {
	const n = 100
	h := batchHeader{term: 7, number: 12_345, count: n, compacted: -1}
	c := Command{ID: CommandID{Origin: 1 << 60, Sequence: 1 << 20}, Kind: 1, Payload: make([]byte, 300)}
	write := func(dst []byte) []byte {
		dst = appendBatchHeader(dst, h)
		for range n {
			dst = appendCommand(dst, c, false)
		}
		return dst
	}
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		var entry []byte
		for b.Loop() {
			entry = write(entry[:0])
		}
		b.SetBytes(int64(len(entry)))
	})
	b.Run("read", func(b *testing.B) {
		entry := write(nil)
		b.SetBytes(int64(len(entry)))
		b.ReportAllocs()
		for b.Loop() {
			var r entryReader
			kind, err := r.open(entry)
			if err != nil || kind != entryBatch {
				b.Fatal(kind, err)
			}
			got, err := r.batchHeader(false)
			if err != nil {
				b.Fatal(err)
			}
			for range got.count {
				if _, err := r.command(false); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
