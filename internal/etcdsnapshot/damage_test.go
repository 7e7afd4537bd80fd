package etcdsnapshot_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/lease/leasepb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/backup"
	"github.com/latchkey-db/latchkey/internal/etcdsnapshot"
)

// Whatever is changed or cut off a database, it is read or refused: nothing panics, faults or
// goes on for ever.
func TestDamagedDatabases(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	whole := unpacked(t, "etcd-3.6.db")
	whole = whole[:len(whole)-sha256.Size]
	path := filepath.Join(t.TempDir(), "db")
	refused, tried := 0, 0
	try := func(b []byte) {
		t.Helper()
		check(t, os.WriteFile(path, b, 0o600))
		tried++
		s, err := etcdsnapshot.Open(path, true)
		if err != nil {
			refused++
			return
		}
		_ = s.Save(io.Discard) // which may be refused
		check(t, s.Close())
	}
	changed := func(at int) {
		b := bytes.Clone(whole)
		b[at] ^= 1 << rnd.IntN(8)
		try(b)
	}
	const page, head = 4096, 16 + 16*4
	share := 1 // of all, where tests are to be short
	if testing.Short() {
		share = 8
	}
	for at := rnd.IntN(share); at < len(whole); at += share {
		if at%page < head { // the head of a page and of its first elements
			changed(at)
		}
	}
	if refused < tried/10 {
		t.Errorf("%d of %d were refused", refused, tried)
	}
	for range 2000 / share {
		changed(rnd.IntN(len(whole)))
	}
	for range 500 / share {
		b := bytes.Clone(whole)
		for i := range rnd.IntN(64) {
			binary.LittleEndian.PutUint64(b[rnd.IntN(len(b)/8)*8:], uint64(i))
		}
		try(b)
	}
	for n := 0; n < len(whole); n += 256 * share {
		try(whole[:n])
	}
}

// A database whose newest first page is not whole is refused: by the other one it would be read as it was
// before. Its pages may be of any size.
func TestFirstPages(t *testing.T) {
	whole := unpacked(t, "etcd-3.6.db")
	for _, at := range []int{20, 4096 + 20, 4096 + 66} {
		b := bytes.Clone(whole)
		b[at] ^= 1
		if _, err := etcdsnapshot.Open(put(t, b), true); !errors.Is(err, backup.ErrDamaged) || !strings.Contains(err.Error(), "first two pages") {
			t.Errorf("byte %d is another: %v", at, err)
		}
	}
	for _, size := range []int{1 << 10, 1 << 14, 1 << 16} {
		path := filepath.Join(t.TempDir(), "db")
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{PageSize: size})
		check(t, err)
		for i := range 3 {
			check(t, db.Update(func(tx *bbolt.Tx) error {
				keys, err := tx.CreateBucketIfNotExists([]byte("key"))
				check(t, err)
				_, err = tx.CreateBucketIfNotExists([]byte("meta"))
				check(t, err)
				rev := int64(i + 2)
				kv := &mvccpb.KeyValue{Key: []byte("k"), Value: make([]byte, 3*size), CreateRevision: 2, ModRevision: rev, Version: rev - 1}
				return keys.Put(revision(uint64(rev), 0, ""), message(kv))
			}))
		}
		check(t, db.Close())
		s, err := etcdsnapshot.Open(path, true)
		check(t, err)
		if r := saved(t, s); len(r.keys) != 1 || r.keys[0].ModRevision != 4 || len(r.keys[0].Value) != 3*size {
			t.Errorf("pages of %d bytes: %d keys, %v", size, len(r.keys), r.summary)
		}
		check(t, s.Close())
	}
}

// database makes a database of bbolt and returns its bytes.
func database(t *testing.T, fill func(tx *bbolt.Tx) error) []byte {
	t.Helper()
	return changedBy(t, nil, fill)
}

// changedBy changes a database by bbolt and returns its bytes.
func changedBy(t *testing.T, b []byte, change func(tx *bbolt.Tx) error) []byte {
	t.Helper()
	path := put(t, b)
	db, err := bbolt.Open(path, 0o600, nil)
	check(t, err)
	check(t, db.Update(change))
	check(t, db.Close())
	b, err = os.ReadFile(path)
	check(t, err)
	return b
}

// manyKeys makes a database whose keys take more than one page.
func manyKeys(t *testing.T) []byte {
	t.Helper()
	return database(t, func(tx *bbolt.Tx) error {
		keys, err := tx.CreateBucket([]byte("key"))
		for i := range 2000 {
			err = errors.Join(err, keys.Put(fmt.Appendf(nil, "%08d", i), make([]byte, 100)))
		}
		return err
	})
}

// Keys that are not in order, on a leaf or on a branch, may hide others.
func TestDisorder(t *testing.T) {
	b := manyKeys(t)
	for _, key := range []string{"00000005", "00000000"} {
		for from := 0; ; { // the first key stands on a branch, too
			at := bytes.Index(b[from:], []byte(key))
			if at < 0 {
				break
			}
			from += at + len(key)
			changed := bytes.Clone(b)
			copy(changed[from-len(key):], "00001000")
			if _, err := etcdsnapshot.Open(put(t, changed), true); !errors.Is(err, backup.ErrDamaged) || !strings.Contains(err.Error(), "out of order") {
				t.Errorf("key %s at %d is another: %v", key, from-len(key), err)
			}
		}
	}
}

// A branch of a tree that leads back to where it comes from has no end.
func TestCircle(t *testing.T) {
	b := manyKeys(t)
	const page, branch = 4096, 1
	circles := 0
	for at := 2 * page; at < len(b); at += page {
		if binary.NativeEndian.Uint16(b[at+8:]) == branch {
			circles++
			binary.NativeEndian.PutUint64(b[at+16+8:], uint64(at/page))
		}
	}
	if _, err := etcdsnapshot.Open(put(t, b), true); circles == 0 || !errors.Is(err, backup.ErrDamaged) || !strings.Contains(err.Error(), "twice") {
		t.Errorf("%d circles: %v", circles, err)
	}
}

func revision(main, sub uint64, mark string) []byte {
	b := append(binary.BigEndian.AppendUint64(nil, main), '_')
	return append(binary.BigEndian.AppendUint64(b, sub), mark...)
}

func message(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// What no etcd writes is refused, and said.
func TestWrongContents(t *testing.T) {
	kv := message(&mvccpb.KeyValue{Key: []byte("k"), CreateRevision: 200, ModRevision: 200, Version: 1})
	whole := unpacked(t, "etcd-3.6.db")
	for _, tc := range []struct {
		name, bucket string
		key, value   []byte
		want         error
		says         string
	}{
		{"right", "key", revision(200, 0, ""), kv, nil, ""},
		{"revision of another length", "key", []byte("12345678_123"), kv, backup.ErrDamaged, "no revision"},
		{"other mark", "key", revision(200, 0, "x"), kv, backup.ErrDamaged, "no revision"},
		{"negative revision", "key", revision(1<<63, 0, ""), kv, backup.ErrDamaged, "no revision"},
		{"revisions used up", "key", revision(1<<62+1, 0, ""), kv, backup.ErrDamaged, "no revision"},
		{"of another revision", "key", revision(201, 0, ""), kv, backup.ErrDamaged, `key "k" of revision 201`},
		{"no message", "key", revision(200, 0, ""), []byte{7}, backup.ErrDamaged, "revision 200"},
		{"tombstone of nothing", "key", revision(200, 0, "t"), nil, backup.ErrDamaged, "revision 200 has no key"},
		{"lease of another id", "lease", binary.BigEndian.AppendUint64(nil, 8), message(&leasepb.Lease{ID: 9, TTL: 5}), backup.ErrDamaged, "lease 9"},
		{"lease of no time", "lease", binary.BigEndian.AppendUint64(nil, 9), message(&leasepb.Lease{ID: 9}), backup.ErrDamaged, "lease 9"},
		{"lease for ever", "lease", binary.BigEndian.AppendUint64(nil, 9), message(&leasepb.Lease{ID: 9, TTL: 9_000_000_001}), backup.ErrDamaged, "lease 9"},
		{"compaction", "meta", []byte("finishedCompactRev"), []byte{1}, backup.ErrDamaged, "no revision"},
		{"auth", "auth", []byte("authEnabled"), []byte{2}, backup.ErrDamaged, "users are checked"},
		{"auth revision", "auth", []byte("authRevision"), []byte{2}, backup.ErrDamaged, "revision of users"},
		{"user", "authUsers", []byte("eve"), nil, backup.ErrDamaged, `user "eve"`},
		{"role", "authRoles", []byte("eve"), nil, backup.ErrDamaged, `role "eve"`},
		{"no version", "meta", []byte("storageVersion"), []byte("x"), backup.ErrDamaged, "version"},
		{"later version", "meta", []byte("storageVersion"), []byte("3.8.0"), backup.ErrVersion, "make-mirror"},
		{"later major version", "meta", []byte("storageVersion"), []byte("4.0.0"), backup.ErrVersion, "4.0.0"},
		{"known version", "meta", []byte("storageVersion"), []byte("3.7.0"), nil, ""},
	} {
		b := changedBy(t, whole[:len(whole)-sha256.Size], func(tx *bbolt.Tx) error { return tx.Bucket([]byte(tc.bucket)).Put(tc.key, tc.value) })
		s, err := etcdsnapshot.Open(put(t, b), true)
		if !errors.Is(err, tc.want) || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", tc.name, err)
		}
		if err == nil {
			check(t, s.Close())
		}
	}
	foreign := database(t, func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("key")); return err })
	if _, err := etcdsnapshot.Open(put(t, foreign), true); !errors.Is(err, backup.ErrForeign) {
		t.Errorf("a database of another program: %v", err)
	}
}

// A revision that has only been compacted away counts, and a key without its lease stays.
func TestWhatEtcdMakesOfIt(t *testing.T) {
	whole := unpacked(t, "etcd-3.5.db")
	b := changedBy(t, whole[:len(whole)-sha256.Size], func(tx *bbolt.Tx) error {
		kv := message(&mvccpb.KeyValue{Key: []byte("orphan"), CreateRevision: 117, ModRevision: 117, Version: 1, Lease: 9})
		return errors.Join(
			tx.Bucket([]byte("key")).Put(revision(117, 0, ""), kv),
			tx.Bucket([]byte("meta")).Put([]byte("scheduledCompactRev"), revision(300, 0, "")))
	})
	s, err := etcdsnapshot.Open(put(t, b), true)
	check(t, err)
	defer s.Close()
	r := saved(t, s)
	if r.summary.Revision != 300 {
		t.Errorf("revision %d", r.summary.Revision)
	}
	for _, kv := range r.keys {
		if string(kv.Key) == "orphan" && kv.Lease == 0 && kv.CreateRevision == 117 {
			return
		}
	}
	t.Errorf("keys %v", r.keys)
}

// The database of a running etcd is not waited for.
func TestLocked(t *testing.T) {
	path := put(t, unpacked(t, "etcd-3.6.db"))
	db, err := bbolt.Open(path, 0o600, nil)
	check(t, err)
	defer db.Close()
	if _, err := etcdsnapshot.Open(path, true); err == nil || !strings.Contains(err.Error(), "stopped") {
		t.Errorf("%v", err)
	}
}
