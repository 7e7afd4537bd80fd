package etcdsnapshot_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"golang.org/x/crypto/bcrypt"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/latchkey-db/latchkey/internal/backup"
	"github.com/latchkey-db/latchkey/internal/etcdsnapshot"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// unpacked returns a file of testdata, which testdata/make.sh has made.
func unpacked(t *testing.T, name string) []byte {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".gz"))
	check(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	check(t, err)
	b, err := io.ReadAll(z)
	check(t, err)
	return b
}

// put writes a file and returns its path.
func put(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "snapshot.db")
	check(t, os.WriteFile(path, content, 0o600))
	return path
}

// records are those of a backup.
type records struct {
	summary backup.Summary
	leases  map[int64]int64
	auth    *pb.AuthStatusResponse
	roles   map[string]*authpb.Role
	users   map[string]*authpb.User
	keys    []*mvccpb.KeyValue
}

// saved is the backup that is made of a snapshot.
func saved(t *testing.T, s *etcdsnapshot.Snapshot) *records {
	t.Helper()
	var first, second bytes.Buffer
	check(t, s.Save(&first))
	check(t, s.Save(&second))
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("a snapshot is not the same backup each time")
	}
	r := &records{leases: make(map[int64]int64), roles: make(map[string]*authpb.Role), users: make(map[string]*authpb.User)}
	var err error
	r.summary, err = backup.Read(bytes.NewReader(first.Bytes()), int64(first.Len()), backup.Contents{
		Lease: func(l *pb.LeaseGrantRequest) error { r.leases[l.ID] = l.TTL; return nil },
		Auth:  func(a *pb.AuthStatusResponse) error { r.auth = a; return nil },
		Role:  func(m *authpb.Role) error { r.roles[string(m.Name)] = m; return nil },
		User:  func(m *authpb.User) error { r.users[string(m.Name)] = m; return nil },
		Key:   func(kv *mvccpb.KeyValue) error { r.keys = append(r.keys, kv); return nil },
	})
	check(t, err)
	return r
}

// What etcds of several versions have saved is read as etcdctl and etcdutl told of it.
func TestSnapshots(t *testing.T) {
	for _, tc := range []struct {
		name    string
		hash    uint32 // etcdutl's
		version string
	}{
		{"etcd-3.5", 240718966, "etcd"},
		{"etcd-3.6", 61634142, "etcd 3.6.0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := put(t, unpacked(t, tc.name+".db"))
			s, err := etcdsnapshot.Open(path, false)
			check(t, err)
			defer s.Close()
			got := s.Summary()
			if got.Hash != tc.hash || got.Version != tc.version || got.Revision != 116 || got.Leases != 2 || got.Users != 3 || got.Roles != 1 {
				t.Errorf("%+v", got)
			}
			r := saved(t, s)
			if r.summary.Revision != 116 || r.summary.Keys != got.Keys || len(r.keys) != got.Keys {
				t.Errorf("made %+v of %+v", r.summary, got)
			}
			checkKeys(t, r, unpacked(t, tc.name+".json"))
			checkUsers(t, r)
		})
	}
}

// checkKeys compares keys with those that etcdctl printed.
func checkKeys(t *testing.T, r *records, printed []byte) {
	t.Helper()
	var want struct {
		Kvs []struct {
			Key, Value     []byte
			CreateRevision int64 `json:"create_revision"`
			ModRevision    int64 `json:"mod_revision"`
			Version, Lease int64
		}
	}
	check(t, json.Unmarshal(printed, &want))
	var keys []*mvccpb.KeyValue
	leased := 0
	for _, kv := range want.Kvs {
		keys = append(keys, &mvccpb.KeyValue{Key: kv.Key, Value: kv.Value, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version, Lease: kv.Lease})
		if kv.Lease != 0 {
			leased++
			if r.leases[kv.Lease] != 600 || len(r.leases) != 2 {
				t.Errorf("leases %v, want %d with 600 s and another", r.leases, kv.Lease)
			}
		}
	}
	if leased != 1 || len(keys) < 40 {
		t.Errorf("%d keys of %d have a lease", leased, len(keys))
	}
	if d := cmp.Diff(keys, r.keys, protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

func checkUsers(t *testing.T, r *records) {
	t.Helper()
	if !r.auth.Enabled || r.auth.AuthRevision < 9 {
		t.Errorf("settings %v", r.auth)
	}
	alice, bob := r.users["alice"], r.users["bob"]
	if alice == nil || bob == nil || !slices.Equal(alice.Roles, []string{"reader"}) || !bob.Options.GetNoPassword() {
		t.Fatalf("users %v", r.users)
	}
	check(t, bcrypt.CompareHashAndPassword(alice.Password, []byte("wonder")))
	want := []*authpb.Permission{
		{PermType: authpb.Permission_READ, Key: []byte("a"), RangeEnd: []byte("z")},
		{PermType: authpb.Permission_READWRITE, Key: []byte("t/"), RangeEnd: []byte("t0")},
	}
	if d := cmp.Diff(want, r.roles["reader"].KeyPermission, protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

// A copied database has no SHA-256, and is taken if that is asked for; a changed snapshot is not.
func TestHash(t *testing.T) {
	whole := unpacked(t, "etcd-3.6.db")
	database := whole[:len(whole)-sha256.Size]
	changed := bytes.Clone(whole)
	changed[len(changed)/2] ^= 1
	for _, tc := range []struct {
		name string
		file []byte
		skip bool
		want error
	}{
		{"whole", whole, false, nil},
		{"whole, unchecked", whole, true, nil},
		{"database, unchecked", database, true, nil},
		{"database", database, false, backup.ErrCut},
		{"cut", whole[:len(whole)/2], false, backup.ErrCut},
		{"cut at a page, with something behind it", append(whole[:40960:40960], whole[:sha256.Size]...), false, backup.ErrDamaged},
		{"cut at a page, unchecked", whole[:40960], true, backup.ErrCut},
		{"changed", changed, false, backup.ErrDamaged},
	} {
		s, err := etcdsnapshot.Open(put(t, tc.file), tc.skip)
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
		if tc.want == nil && err == nil {
			check(t, s.Close())
		}
		if tc.name == "database" && !strings.Contains(err.Error(), "--skip-hash-check") {
			t.Errorf("a copied database: %v", err)
		}
	}
}
