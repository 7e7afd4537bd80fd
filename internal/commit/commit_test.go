package commit

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/mvcc"
)

func put(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte("v")}}}
}

// Messages are read as they were written; cut short they are malformed, and with something behind
// them, or of a later form, they are newer.
func TestMessages(t *testing.T) {
	t.Parallel()
	id := ID{1, 2, 3}
	span := keys.NewSet(keys.Point([]byte("a")), keys.Span{Start: []byte("c"), End: []byte("d")})
	p := Prepare{ID: id, Age: Age{7, ID{1, 2, 2}}, Open: 3, Home: 4, Reads: span, Writes: keys.NewSet(keys.Point([]byte("b"))), Leases: []int64{5, -6}}
	e := Prepare{ID: id, Age: Age{7, ID{1, 2, 2}}, Open: 3, Home: 4, End: End{
		Lease: lease.Ref{ID: -7, Incarnation: 9}, Decided: true, Shards: []uint64{2, 300},
	}}
	placed := []mvcc.Placed{{Place: 3, Op: put("a")}, {Place: 9, Op: put("b")}}
	ops := EncodeOps(placed)
	if got, err := ops.Decode(); err != nil || ops.Len() != 2 || !sameOps(got, placed) {
		t.Errorf("%d operations are %v, %v", ops.Len(), got, err)
	}
	if got, err := Ops(nil).Decode(); err != nil || len(got) != 0 || Ops(nil).Len() != 0 {
		t.Errorf("no operations are %v, %v", got, err)
	}
	d := Decision{ID: id, Lowest: -1, Highest: 8, Shares: []Share{{2, ops}, {3, nil}}}
	u := Decision{ID: id, Open: 2, Shares: []Share{{2, ops}}}
	f := []Finish{{id, 9, ops}, {ID{1, 2, 4}, 10, nil}}
	for name, m := range map[string]struct {
		written []byte
		read    func([]byte) (any, error)
		want    any
	}{
		"prepare":    {p.Append(nil), func(b []byte) (any, error) { return DecodePrepare(b) }, p},
		"end":        {e.Append(nil), func(b []byte) (any, error) { return DecodePrepare(b) }, e},
		"decision":   {d.Append(nil), func(b []byte) (any, error) { return DecodeDecision(b) }, d},
		"unprepared": {u.Append(nil), func(b []byte) (any, error) { return DecodeDecision(b) }, u},
		"finishes":   {AppendFinishes(nil, f), func(b []byte) (any, error) { return DecodeFinishes(b) }, f},
	} {
		got, err := m.read(m.written)
		if err != nil || !reflect.DeepEqual(got, m.want) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, m.want)
		}
		for n := range m.written {
			if _, err := m.read(m.written[:n]); err == nil {
				t.Errorf("%s of %d bytes was read", name, n)
			}
		}
		if _, err := m.read(append(m.written, 0)); !errors.Is(err, keys.ErrNewer) {
			t.Errorf("%s with more: %v", name, err)
		}
		m.written[0] = unpreparedForm + 1
		if _, err := m.read(m.written); !errors.Is(err, keys.ErrNewer) {
			t.Errorf("%s of a later form: %v", name, err)
		}
	}
}

func sameOps(a, b []mvcc.Placed) bool {
	return slices.EqualFunc(a, b, func(a, b mvcc.Placed) bool { return a.Place == b.Place && proto.Equal(a.Op, b.Op) })
}

// A table holds after a restart what it held before, and what has ended stays known until its
// node says that nothing so old is under way.
func TestTable(t *testing.T) {
	t.Parallel()
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	table, err := Open(db, []byte("r/"))
	if err != nil {
		t.Fatal(err)
	}
	change := func(fn func(b *pebble.Batch) error) {
		t.Helper()
		b := db.NewBatch()
		if err := errors.Join(fn(b), table.Finish(b), b.Commit(pebble.NoSync)); err != nil {
			t.Fatal(err)
		}
		again, err := Open(db, []byte("r/"))
		if err != nil {
			t.Fatal(err)
		}
		for name, pair := range map[string][2]any{
			"held": {table.held, again.held}, "over": {table.over, again.over}, "marks": {table.marks, again.marks},
			"leases": {table.leases, again.leases}, "ends": {table.ends, again.ends}, "ended": {table.ended, again.ended},
			"committed": {len(table.committed), len(again.committed)},
		} {
			if !reflect.DeepEqual(pair[0], pair[1]) {
				t.Fatalf("%s: %v, after a restart %v", name, pair[0], pair[1])
			}
		}
	}
	old, a, b, other := ID{1, 5, 9}, ID{1, 6, 1}, ID{1, 6, 2}, ID{2, 3, 1}
	hold := func(id ID, open uint64) {
		change(func(batch *pebble.Batch) error {
			return table.Hold(batch, &Prepare{ID: id, Age: Age{1, id}, Open: open, Home: 3, Leases: []int64{int64(id.Counter)}})
		})
	}
	hold(a, 1)
	if !table.Refused(old) || table.Refused(b) || table.Refused(other) || !table.HoldsLease(1) {
		t.Errorf("an attempt of an earlier boot is taken, or one of this boot or another node refused")
	}
	change(func(batch *pebble.Batch) error {
		return errors.Join(
			table.End(batch, a, 7), table.Commit(batch, a, Committed{Rev: 7, Shares: []Share{{4, EncodeOps([]mvcc.Placed{{Op: put("x")}})}}}),
			table.End(batch, other, 0), table.End(batch, old, 0),
		)
	})
	if rev, known := table.Outcome(a); rev != 7 || !known || table.HoldsLease(1) || len(table.AllHeld()) != 0 {
		t.Errorf("what was committed is known as %d, %v", rev, known)
	}
	if rev, known := table.Outcome(other); rev != 0 || !known || !table.Refused(other) {
		t.Errorf("what was aborted is known as %d, %v", rev, known)
	}
	change(func(batch *pebble.Batch) error { return table.Forget(batch, a) })
	if rev, known := table.Outcome(a); rev != 7 || !known || !table.Refused(a) {
		t.Errorf("what all have finished is known as %d, %v", rev, known)
	}
	hold(b, 2)
	if _, known := table.Outcome(a); known || !table.Refused(a) || !table.Refused(other) {
		t.Errorf("the mark of one node forgets too little or too much: %v", table.over)
	}
	if got := table.AllHeld()[b]; got.Home != 3 || got.Age != (Age{1, b}) {
		t.Errorf("held as %+v", got)
	}
	ref := lease.Ref{ID: 77, Incarnation: 5}
	end := ID{1, 6, 3}
	change(func(batch *pebble.Batch) error {
		return table.Hold(batch, &Prepare{ID: end, Age: Age{1, end}, Open: 2, Home: 3, End: End{Lease: ref, Shards: []uint64{4}}})
	})
	if !table.Ends(77) || !table.HoldsLease(77) || table.HasEnded(ref) || !slices.Equal(table.HoldersOf(77), []ID{end}) {
		t.Errorf("the end of a lease is not held: %v", table.AllHeld())
	}
	if !slices.Equal(table.HoldersOf(2), []ID{b}) || table.Ends(2) {
		t.Errorf("lease 2 is held by %v", table.HoldersOf(2))
	}
	change(func(batch *pebble.Batch) error {
		return errors.Join(table.Commit(batch, end, Committed{Rev: 9, Ended: ref}), table.End(batch, end, 9))
	})
	if table.Ends(77) || table.HoldsLease(77) || !table.HasEnded(ref) {
		t.Error("the lease has not ended")
	}
	change(func(batch *pebble.Batch) error { return table.Forget(batch, end) })
	if table.HasEnded(ref) {
		t.Error("the end is not forgotten")
	}
	if got, err := FromKey(b.Key()); got != b || err != nil {
		t.Errorf("id %v, %v", got, err)
	}
}
