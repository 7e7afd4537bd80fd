package mvcc

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// A version that is not where it should be is an error of whoever needs it, not
// an answer.
func TestMissingVersion(t *testing.T) {
	e := memEnv(t)
	long := strings.Repeat("v", 2*inlineValue)
	e.put("k", long)
	e.put("l", "fine")
	g := e.s.NewGroup()
	defer g.Close()
	g.Add(1, WatchOptions{Key: []byte("k"), PrevKV: true})
	if err := e.db.Delete(e.s.layout.appendVersion(nil, []byte("k"), 2, 0), pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	for _, req := range []*pb.RangeRequest{
		{Key: []byte("k")}, all(), {Key: []byte("a"), RangeEnd: []byte{0}, SortTarget: pb.RangeRequest_VALUE},
	} {
		if resp, err := e.get(req); !errors.Is(err, pebble.ErrNotFound) || Rejected(err) {
			t.Errorf("range %v: %v, %v", req, resp, err)
		}
	}
	if resp, err := e.get(&pb.RangeRequest{Key: []byte("k"), KeysOnly: true}); err != nil || len(resp.Kvs) != 1 {
		t.Errorf("keys only: %v, %v", resp, err)
	}
	value := &pb.Compare{Target: pb.Compare_VALUE, Key: []byte("k"), TargetUnion: &pb.Compare_Value{}}
	v := e.s.View()
	if _, err := v.Txn(background, &pb.TxnRequest{Compare: []*pb.Compare{value}}); !errors.Is(err, pebble.ErrNotFound) {
		t.Errorf("compare: %v", err)
	}
	v.Close()
	b := e.db.NewBatch()
	defer b.Close()
	w := e.s.NewWriter(b, &e.leases)
	if _, err := w.Put(&pb.PutRequest{Key: []byte("k"), PrevKv: true}, Opts{Want: true}); err == nil || Rejected(err) {
		t.Errorf("put: %v", err)
	}
	if _, err := w.DeleteRange(&pb.DeleteRangeRequest{Key: []byte("k"), PrevKv: true}, Opts{Want: true}); err == nil || Rejected(err) {
		t.Errorf("delete: %v", err)
	}
	if _, err := w.Txn(&pb.TxnRequest{Compare: []*pb.Compare{value}}, Opts{Want: true}); err == nil || Rejected(err) {
		t.Errorf("transaction: %v", err)
	}

	// The live watcher can't be given the previous version. It must not get the
	// event without it, and learns of the damage from history.
	e.put("k", "new")
	if b, ok, err := g.Poll(); !errors.Is(err, ErrCorrupt) || ok {
		t.Errorf("live watcher: %v, %v, %v", b, ok, err)
	}
	g.Remove(1)
	g.Add(2, WatchOptions{Key: []byte("k"), End: []byte{0}, Start: 2})
	if b, ok, err := g.Poll(); !errors.Is(err, ErrCorrupt) || ok {
		t.Errorf("catching up: %v, %v, %v", b, ok, err)
	}
	if err := e.compact(4); err != nil {
		t.Fatal(err)
	}
	if _, err := e.s.Sweep(100); !errors.Is(err, ErrCorrupt) {
		t.Errorf("sweep: %v", err)
	}
}

// FuzzDecodeRecord checks that decoding takes any bytes, and what encoding
// writes for what it takes.
func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte{kindTombstone})
	f.Add([]byte{kindPut, 1, 1, 0, 'v'})
	f.Add([]byte{kindPut, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := decodeRecord(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, keys.ErrNewer) {
				t.Fatal(err)
			}
			return
		}
		it := newItem(nil, stamp{}, rec)
		enc := appendRecord(nil, &it, rec.value)
		if len(enc) != recordLen(&it) || len(enc) > len(b) {
			t.Fatalf("%x encodes as %x, %d bytes", b, enc, recordLen(&it))
		}
		again, err := decodeRecord(enc)
		if err != nil || again.dead != rec.dead || again.create != rec.create || again.version != rec.version ||
			again.lease != rec.lease || !bytes.Equal(again.value, rec.value) {
			t.Fatalf("%x decodes as %+v, again as %+v, %v", b, rec, again, err)
		}
	})
}
