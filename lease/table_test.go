package lease

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/latchkey-db/latchkey/internal/invariant"
	"github.com/latchkey-db/latchkey/internal/keys"
)

func openDB(tb testing.TB, fs vfs.FS) *pebble.DB {
	tb.Helper()
	db, err := pebble.Open("db", &pebble.Options{FS: fs, Logger: quiet{}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	return db
}

// quiet drops Pebble's log.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, args ...any) {
	invariant.Violated(format, args...)
}

func openTable(tb testing.TB, db *pebble.DB, prefix string) *Table {
	tb.Helper()
	table, err := Open(db, []byte(prefix))
	if err != nil {
		tb.Fatal(err)
	}
	return table
}

// apply runs f on a batch and commits it.
func apply(tb testing.TB, db *pebble.DB, f func(b *pebble.Batch)) {
	tb.Helper()
	b := db.NewBatch()
	f(b)
	if err := b.Commit(pebble.NoSync); err != nil {
		tb.Fatal(err)
	}
}

func mustGrant(tb testing.TB, table *Table, b *pebble.Batch, id, ttl int64) {
	tb.Helper()
	if _, err := table.Grant(b, id, ttl); err != nil {
		tb.Fatal(err)
	}
}

func TestTableCommands(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	table := openTable(t, db, "a/")

	apply(t, db, func(b *pebble.Batch) {
		for i, id := range []int64{7, -7, 5} {
			got, err := table.Grant(b, id, 60)
			want := Record{ID: id, TTL: 60, Incarnation: uint64(i + 1)}
			if err != nil || got != want {
				t.Fatalf("Grant(%d) = %+v, %v, want %+v", id, got, err, want)
			}
		}
		if _, err := table.Grant(b, 7, 30); !errors.Is(err, ErrExists) {
			t.Fatalf("second Grant(7): %v", err)
		}
		table.Attach(7, []byte("b"))
		table.Attach(7, []byte("a"))
		table.Attach(7, []byte("a"))
		table.Attach(5, []byte("c"))
		table.Detach(5, []byte("c"))
		table.Detach(5, []byte("never there"))
		table.Detach(404, []byte("a"))
		for name, err := range map[string]error{
			"SetAging":  table.SetAging(b, 404, time.Second),
			"SetFresh":  table.SetFresh(b, 404),
			"SetEnding": table.SetEnding(b, 404, false),
		} {
			if !errors.Is(err, ErrNotFound) {
				t.Errorf("%s of an unknown lease: %v", name, err)
			}
		}
		if err := table.SetAging(b, -7, 30*time.Second); err != nil {
			t.Fatal(err)
		}
		if err := table.SetAging(b, 5, 20*time.Second); err != nil {
			t.Fatal(err)
		}
		if err := table.SetFresh(b, 5); err != nil {
			t.Fatal(err)
		}
		if err := table.SetEnding(b, 5, true); err != nil {
			t.Fatal(err)
		}
	})

	want := []Record{
		{ID: -7, TTL: 60, Incarnation: 2, Aging: 30 * time.Second},
		{ID: 5, TTL: 60, Incarnation: 3, Ending: true, Intact: true},
		{ID: 7, TTL: 60, Incarnation: 1},
	}
	if diff := cmp.Diff(want, table.All()); diff != "" {
		t.Errorf("All (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([][]byte{[]byte("a"), []byte("b")}, table.Keys(7)); diff != "" {
		t.Errorf("Keys(7) (-want +got):\n%s", diff)
	}
	for id, want := range map[int64]bool{7: true, -7: true, 5: false, 404: false} {
		if got := table.Exists(id); got != want {
			t.Errorf("Exists(%d) = %t", id, got)
		}
	}
	if got := table.Keys(404); got != nil {
		t.Errorf("Keys of an unknown lease = %q", got)
	}

	apply(t, db, func(b *pebble.Batch) {
		keys, err := table.Revoke(b, 7)
		if diff := cmp.Diff([][]byte{[]byte("a"), []byte("b")}, keys); err != nil || diff != "" {
			t.Errorf("Revoke(7): %v (-want +got):\n%s", err, diff)
		}
		if _, err := table.Revoke(b, 7); !errors.Is(err, ErrNotFound) {
			t.Errorf("second Revoke(7): %v", err)
		}
		table.Detach(7, []byte("a"))
		got, err := table.Grant(b, 7, 10)
		if err != nil || got.Incarnation != 4 {
			t.Errorf("Grant(7) after its end = %+v, %v, want incarnation 4", got, err)
		}
		if keys := table.Keys(7); keys != nil {
			t.Errorf("the new lease has keys %q", keys)
		}
	})
}

func TestTableSurvivesReopen(t *testing.T) {
	fs := vfs.NewMem()
	db := openDB(t, fs)
	table, other := openTable(t, db, "a/"), openTable(t, db, "b/")
	apply(t, db, func(b *pebble.Batch) {
		mustGrant(t, table, b, 1, 10)
		mustGrant(t, table, b, 2, 20)
		mustGrant(t, other, b, 2, 99)
		table.Attach(2, []byte("k"))
		if _, err := table.Revoke(b, 2); err != nil {
			t.Fatal(err)
		}
		if err := table.SetAging(b, 1, time.Second); err != nil {
			t.Fatal(err)
		}
	})

	again := openTable(t, db, "a/")
	if diff := cmp.Diff(table.All(), again.All()); diff != "" {
		t.Errorf("leases (-before +after):\n%s", diff)
	}
	if table.Granted() != 2 || again.Granted() != 2 {
		t.Errorf("granted %d, after reopening %d, want 2", table.Granted(), again.Granted())
	}
	if got := openTable(t, db, "b/").All(); len(got) != 1 || got[0].TTL != 99 {
		t.Errorf("the other replica has %+v", got)
	}

	// An uncommitted batch shows in memory until Reload.
	b := db.NewBatch()
	mustGrant(t, again, b, 3, 30)
	if !again.Exists(3) {
		t.Error("a grant doesn't show at once")
	}
	again.Attach(1, []byte("gone after reload"))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := again.Reload(); err != nil {
		t.Fatal(err)
	}
	if again.Exists(3) || again.Granted() != 2 || again.Keys(1) != nil {
		t.Errorf("after Reload: %+v, granted %d, keys %q", again.All(), again.Granted(), again.Keys(1))
	}
}

func TestTableRefusesCorruptState(t *testing.T) {
	for name, tc := range map[string]struct {
		key, value []byte
		want       string
	}{
		"record":      {appendRecordKey(nil, []byte("a/l"), 0x2a), []byte{recordVersion}, "decode lease 2a"},
		"record key":  {[]byte("a/lr123"), appendRecord(nil, Record{}), "decode lease key"},
		"intact":      {appendRecordKey(nil, []byte("a/l"), 1), append([]byte{recordVersion, flagIntact}, appendRecord(nil, Record{})[2:]...), "corrupt"},
		"counter":     {[]byte("a/lc"), []byte{7}, "decode grant counter"},
		"incarnation": {appendRecordKey(nil, []byte("a/l"), 1), appendRecord(nil, Record{Incarnation: 1}), "above the grant counter"},
	} {
		t.Run(name, func(t *testing.T) {
			db := openDB(t, vfs.NewMem())
			if err := db.Set(tc.key, tc.value, pebble.NoSync); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(db, []byte("a/")); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Open: %v, want %q", err, tc.want)
			}
		})
	}
}

func TestTableRefusesLaterState(t *testing.T) {
	grant, counter := appendRecord(nil, Record{ID: 1, TTL: 60, Incarnation: 1}), encodeCounter(1)
	at := func(kind byte) []byte { return appendID([]byte{'a', '/', 'l', kind}, 1) }
	for name, tc := range map[string]struct{ key, value []byte }{
		"kind":         {at('z'), nil},
		"record":       {at(kindRecord), append([]byte{recordVersion + 1}, grant[1:]...)},
		"flag":         {at(kindRecord), append([]byte{recordVersion, flagIntact << 1}, grant[2:]...)},
		"shadow":       {at(kindShadow), append([]byte{counterVersion + 1}, counter[1:]...)},
		"registration": {append(at(kindRegistration), 0, 0, 0, 0, 0, 0, 0, 9), []byte{1}},
	} {
		db := openDB(t, vfs.NewMem())
		for _, set := range [][2][]byte{{at(kindRecord), grant}, {[]byte("a/lc"), counter}, {tc.key, tc.value}} {
			if err := db.Set(set[0], set[1], pebble.NoSync); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Open(db, []byte("a/")); !errors.Is(err, keys.ErrNewer) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTableInvariants(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	table := openTable(t, db, "")
	b := db.NewBatch()
	defer func() { _ = b.Close() }()
	mustGrant(t, table, b, 1, 10)
	for name, f := range map[string]func(){
		"attach to an unknown lease": func() { table.Attach(2, []byte("k")) },
		"attach an empty key":        func() { table.Attach(1, nil) },
		"no remainder":               func() { _ = table.SetAging(b, 1, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if _, ok := recover().(*invariant.ViolatedError); !ok {
					t.Error("no invariant was violated")
				}
			}()
			f()
		})
	}
	// A violation must not leave the table locked.
	if !table.Exists(1) {
		t.Error("lease 1 is gone")
	}
}

func TestTableReadersBesideApply(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	table := openTable(t, db, "")
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, r := range table.All() {
					if r.TTL != r.ID {
						t.Errorf("torn record %+v", r)
						return
					}
					table.Keys(r.ID)
					table.Exists(r.ID)
				}
			}
		})
	}
	for i := range int64(200) {
		apply(t, db, func(b *pebble.Batch) {
			id := i%20 + 1
			if _, err := table.Revoke(b, id); err != nil && !errors.Is(err, ErrNotFound) {
				t.Fatal(err)
			}
			mustGrant(t, table, b, id, id)
			table.Attach(id, fmt.Appendf(nil, "k%d", i))
		})
	}
	close(stop)
	wg.Wait()
}
