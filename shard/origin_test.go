package shard

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
)

func TestSentIsReadAsWritten(t *testing.T) {
	for _, s := range []Sent{
		{ID: raft.CommandID{Origin: 1<<63 + 5, Sequence: 7}, Term: 9, Kind: KindPut, Request: []byte("put")},
		{ID: raft.CommandID{Origin: 1, Sequence: 1 << 40}, Term: 1 << 50, Kind: KindLeaseRevoke, Request: []byte{}, Guard: &Guard{Epoch: 3}},
		{Kind: KindTxn, Request: []byte("txn"), Guard: &Guard{Epoch: 1, Leases: []int64{-5, 6}, Writable: keys.NewSet(keys.Point([]byte("k")))}},
	} {
		got, err := CutSent(s.Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(s, got); d != "" {
			t.Errorf("read back differently: %s", d)
		}
	}
}

func TestMalformedSent(t *testing.T) {
	whole := (&Sent{ID: raft.CommandID{Origin: 1, Sequence: 2}, Term: 3, Kind: KindPut, Request: []byte("x"), Guard: &Guard{Epoch: 4, Leases: []int64{1}}}).Append(nil)
	for n := range len(whole) - 2 {
		if s, err := CutSent(whole[:n]); err == nil {
			t.Errorf("the first %d bytes were read as %+v", n, s)
		}
	}
	for _, s := range []Sent{{Kind: kindFence}, {Kind: 200}, {Kind: KindPut, Request: []byte{0xff}}} {
		if _, err := s.request(); err == nil {
			t.Errorf("%+v was taken for a request", s)
		}
	}
}
