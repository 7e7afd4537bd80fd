package raft

import (
	"bytes"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	pvfs "github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	sm "github.com/lni/dragonboat/v4/statemachine"
	"pgregory.net/rapid"

	"github.com/latchkey-db/latchkey/internal/keys"
)

func TestEntryRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := batchHeader{term: rapid.Uint64().Draw(t, "term"), number: rapid.Uint64().Draw(t, "number"), compacted: -1}
		wantKind := entryBatch
		if h.numbered = rapid.Bool().Draw(t, "numbered"); h.numbered {
			wantKind = entryNumbered
			h.compacted = rapid.Int64Min(-1).Draw(t, "compacted")
		}
		commands := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Command {
			c := Command{
				ID:      CommandID{rapid.Uint64().Draw(t, "origin"), rapid.Uint64().Draw(t, "sequence")},
				Kind:    Kind(rapid.Byte().Draw(t, "kind")),
				Payload: rapid.SliceOf(rapid.Byte()).Draw(t, "payload"),
			}
			if h.numbered {
				c.Number = rapid.Int64Min(0).Draw(t, "order")
			}
			return c
		}), 0, 5).Draw(t, "commands")
		h.count = uint64(len(commands))
		entry := appendBatchHeader(nil, h)
		for _, c := range commands {
			entry = appendCommand(entry, c, h.numbered)
		}
		var r entryReader
		if kind, err := r.open(entry); err != nil || kind != wantKind {
			t.Fatalf("type %d, %v", kind, err)
		}
		got, err := r.batchHeader(h.numbered)
		if err != nil || got != h {
			t.Fatalf("header %+v, %v; want %+v", got, err, h)
		}
		for _, want := range commands {
			c, err := r.command(h.numbered)
			if err != nil || c.ID != want.ID || c.Number != want.Number || c.Kind != want.Kind || !bytes.Equal(c.Payload, want.Payload) {
				t.Fatalf("command %+v, %v; want %+v", c, err, want)
			}
		}
		if len(r.rest) != 0 {
			t.Fatalf("%d bytes left", len(r.rest))
		}
	})
}

// Whatever an entry holds, reading it ends in an error or in commands that lie
// within it.
func FuzzEntry(f *testing.F) {
	f.Add(appendBegin(nil, 7))
	for _, numbered := range []bool{false, true} {
		header := appendBatchHeader(nil, batchHeader{term: 1, number: 2, count: 1, numbered: numbered})
		f.Add(appendCommand(header, Command{ID: CommandID{3, 4}, Number: 6, Kind: 5, Payload: []byte("payload")}, numbered))
	}
	f.Add([]byte{entryFormat, entryBatch, 0x80})
	f.Fuzz(func(t *testing.T, entry []byte) {
		var r entryReader
		kind, err := r.open(entry)
		if err != nil || kind != entryBatch && kind != entryNumbered {
			return
		}
		h, err := r.batchHeader(kind == entryNumbered)
		if err != nil {
			return
		}
		for range min(h.count, 1000) {
			c, err := r.command(h.numbered)
			if err != nil {
				if !errors.Is(err, errBadEntry) {
					t.Fatal(err)
				}
				return
			}
			if len(c.Payload) > len(entry) {
				t.Fatal("payload is longer than the entry")
			}
		}
	})
}

// fill gives a replica some records, and its neighbours too.
func fill(t *testing.T, db *pebble.DB) {
	t.Helper()
	for _, prefix := range [][]byte{Prefix(1, 1), Prefix(1, 2), Prefix(2, 1)} {
		for i := range 3000 {
			key := append(bytes.Clone(prefix), byte('k'), byte(i>>8), byte(i))
			if err := db.Set(key, bytes.Repeat([]byte{byte(i)}, i%300), pebble.NoSync); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func contents(t *testing.T, db *pebble.DB, prefix []byte) map[string]string {
	t.Helper()
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: keys.PrefixEnd(prefix)})
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string]string)
	for it.First(); it.Valid(); it.Next() {
		m[string(it.Key()[len(prefix):])] = string(it.Value())
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	return m
}

func openState(t *testing.T, fs pvfs.FS) *pebble.DB {
	t.Helper()
	db, err := pebble.Open("state", StateOptions(fs, quietPebble{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// A snapshot replaces one replica's records and nobody else's; a damaged or cut
// one replaces nothing.
func TestSnapshotReplacesOneReplica(t *testing.T) {
	source, fs := openState(t, pvfs.NewMem()), pvfs.NewMem()
	target := openState(t, fs)
	fill(t, source)
	from, to := Prefix(1, 1), Prefix(1, 2)
	snap := source.NewSnapshot()
	var out bytes.Buffer
	if err := writeSnapshot(snap, from, &out, nil); err != nil {
		t.Fatal(err)
	}
	if err := snap.Close(); err != nil {
		t.Fatal(err)
	}
	old := map[string]string{"old": "record"}
	neighbour := Prefix(1, 1)
	for _, key := range [][]byte{append(bytes.Clone(to), "old"...), append(bytes.Clone(neighbour), "old"...)} {
		if err := target.Set(key, []byte("record"), pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	whole := out.Bytes()
	for name, bad := range map[string][]byte{
		"cut":      whole[:len(whole)-1],
		"cut half": whole[:len(whole)/2],
		"flipped":  flip(whole, len(whole)/3),
		"empty":    nil,
		"foreign":  []byte("something else altogether"),
	} {
		if err := readSnapshot(target, fs, "tmp", to, bytes.NewReader(bad), nil); !errors.Is(err, errBadSnapshot) {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(old, contents(t, target, to)); diff != "" {
			t.Errorf("%s changed the state:\n%s", name, diff)
		}
	}
	if err := readSnapshot(target, fs, "tmp", to, bytes.NewReader(whole), nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(contents(t, source, from), contents(t, target, to)); diff != "" {
		t.Errorf("state (-source +target):\n%s", diff)
	}
	if diff := cmp.Diff(old, contents(t, target, neighbour)); diff != "" {
		t.Errorf("the neighbour was touched:\n%s", diff)
	}
	if left, err := fs.List("tmp"); err != nil || len(left) != 0 {
		t.Errorf("files left: %v, %v", left, err)
	}
}

func flip(b []byte, at int) []byte {
	c := bytes.Clone(b)
	c[at] ^= 1
	return c
}

func TestSnapshotStops(t *testing.T) {
	db := openState(t, pvfs.NewMem())
	fill(t, db)
	stop := make(chan struct{})
	close(stop)
	snap := db.NewSnapshot()
	defer func() {
		if err := snap.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := writeSnapshot(snap, Prefix(1, 1), &bytes.Buffer{}, stop); !errors.Is(err, sm.ErrSnapshotStopped) {
		t.Errorf("%v", err)
	}
}

// What a later version wrote is never skipped.
func TestLaterEntriesStopTheReplica(t *testing.T) {
	c := newCluster(t, 1)
	defer c.close()
	nd, _ := c.leader(0)
	s := &stateMachine{r: nd.r, db: nd.db}
	batch := func(term uint64) []byte { return appendBatchHeader(nil, batchHeader{term: term, number: 1}) }
	for name, entry := range map[string][]byte{
		"format": {entryFormat + 1, entryBegin, 9},
		"type":   {entryFormat, 200, 9},
		"begin":  append(appendBegin(nil, 9), 0),
		"batch":  append(batch(8), 0),
	} {
		b := nd.db.NewBatch()
		p := progress{term: 8}
		_, err := s.applyEntry(&p, nd.m.Apply(b), sm.Entry{Cmd: entry}, nil)
		if !errors.Is(err, keys.ErrNewer) {
			t.Errorf("%s: %v", name, err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}
