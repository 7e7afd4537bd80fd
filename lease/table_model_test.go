package lease

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// tableModel is the table as a map, for comparison.
type tableModel struct {
	records map[int64]Record
	keys    map[int64]map[string]bool
	granted uint64
}

func (m *tableModel) sortedKeys(id int64) [][]byte {
	var keys [][]byte
	for _, k := range slices.Sorted(maps.Keys(m.keys[id])) {
		keys = append(keys, []byte(k))
	}
	return keys
}

func TestTableModel(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	prefix := byte(0)
	rapid.Check(t, func(t *rapid.T) {
		prefix++ // a replica of its own for every run
		name := []byte{'r', prefix, byte(rapid.Uint32().Draw(t, "salt")), '/'}
		if err := db.DeleteRange(name, append(slices.Clone(name), 0xff), pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		table, err := Open(db, name)
		if err != nil {
			t.Fatal(err)
		}
		m := &tableModel{records: map[int64]Record{}, keys: map[int64]map[string]bool{}}
		b := db.NewBatch()
		commit := func() {
			if err := b.Commit(pebble.NoSync); err != nil {
				t.Fatal(err)
			}
			b = db.NewBatch()
		}
		defer func() { _ = b.Close() }()

		ids := rapid.Int64Range(-2, 5)
		keys := rapid.SliceOfN(rapid.ByteRange('a', 'c'), 1, 2)
		// change runs a command that needs a lease on table and model.
		change := func(t *rapid.T, f func(id int64) error, g func(r *Record)) {
			id := ids.Draw(t, "id")
			r, ok := m.records[id]
			if err := f(id); ok != (err == nil) || !ok && !errors.Is(err, ErrNotFound) {
				t.Fatalf("lease %d (there: %t): %v", id, ok, err)
			}
			if ok {
				g(&r)
				m.records[id] = r
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"grant": func(t *rapid.T) {
				id, ttl := ids.Draw(t, "id"), rapid.Int64Range(1, 100).Draw(t, "ttl")
				got, err := table.Grant(b, id, ttl)
				if r, ok := m.records[id]; ok {
					want := ErrExists
					if r.Ending {
						want = ErrEnding
					}
					if !errors.Is(err, want) {
						t.Fatalf("grant of a taken id: %v", err)
					}
					return
				}
				m.granted++
				m.records[id] = Record{ID: id, TTL: ttl, Incarnation: m.granted}
				m.keys[id] = map[string]bool{}
				if err != nil || got != m.records[id] {
					t.Fatalf("granted %+v, %v, want %+v", got, err, m.records[id])
				}
			},
			"revoke": func(t *rapid.T) {
				change(t, func(id int64) error {
					keys, err := table.Revoke(b, id)
					if diff := cmp.Diff(m.sortedKeys(id), keys); diff != "" {
						t.Fatalf("revoked keys (-want +got):\n%s", diff)
					}
					delete(m.keys, id)
					return err
				}, func(*Record) {})
				maps.DeleteFunc(m.records, func(id int64, _ Record) bool { return m.keys[id] == nil })
			},
			"aging": func(t *rapid.T) {
				left := time.Duration(rapid.Int64Range(1, 1e10).Draw(t, "left"))
				change(t, func(id int64) error { return table.SetAging(b, id, left) }, func(r *Record) { r.Aging = left })
			},
			"fresh": func(t *rapid.T) {
				change(t, func(id int64) error { return table.SetFresh(b, id) }, func(r *Record) { r.Aging = 0 })
			},
			"ending": func(t *rapid.T) {
				intact := rapid.Bool().Draw(t, "intact")
				change(t, func(id int64) error { return table.SetEnding(b, id, intact) },
					func(r *Record) { r.Ending, r.Intact = true, intact })
			},
			"attach": func(t *rapid.T) {
				id, key := ids.Draw(t, "id"), keys.Draw(t, "key")
				if m.keys[id] != nil {
					table.Attach(id, key)
					m.keys[id][string(key)] = true
				}
			},
			"detach": func(t *rapid.T) {
				id, key := ids.Draw(t, "id"), keys.Draw(t, "key")
				table.Detach(id, key)
				delete(m.keys[id], string(key))
			},
			"commit": func(*rapid.T) { commit() },
			"reload": func(t *rapid.T) {
				commit()
				if err := table.Reload(); err != nil {
					t.Fatal(err)
				}
				for id, keys := range m.keys {
					for key := range keys {
						table.Attach(id, []byte(key))
					}
				}
			},
			"": func(t *rapid.T) { compareTable(t, table, m) },
		})
	})
}

func compareTable(t *rapid.T, table *Table, m *tableModel) {
	want := make([]Record, 0, len(m.records))
	for _, id := range slices.Sorted(maps.Keys(m.records)) {
		r := m.records[id]
		want = append(want, r)
		got := table.Keys(id)
		if diff := cmp.Diff(m.sortedKeys(id), got); diff != "" {
			t.Fatalf("keys of %d (-want +got):\n%s", id, diff)
		}
		for _, key := range got {
			key[0] = 'z' // they are the caller's
		}
		asked := 0
		if !table.Every(id, func(key []byte) bool { asked++; return m.keys[id][string(key)] }) || asked != len(m.keys[id]) {
			t.Fatalf("lease %d: asked for %d of %d keys, or one that it does not have", id, asked, len(m.keys[id]))
		}
		if len(m.keys[id]) > 0 && table.Every(id, func([]byte) bool { return false }) {
			t.Fatalf("lease %d: every key passed a test that none passes", id)
		}
		if got, ok := table.Get(id); !ok || got != r {
			t.Fatalf("Get(%d) = %+v, %t, want %+v", id, got, ok, r)
		}
		if table.Exists(id) == r.Ending {
			t.Fatalf("Exists(%d) = %t", id, !r.Ending)
		}
	}
	if diff := cmp.Diff(want, table.All()); diff != "" {
		t.Fatalf("leases (-want +got):\n%s", diff)
	}
	if table.Len() != len(want) || table.Granted() != m.granted {
		t.Fatalf("Len %d, Granted %d, want %d, %d", table.Len(), table.Granted(), len(want), m.granted)
	}
}
