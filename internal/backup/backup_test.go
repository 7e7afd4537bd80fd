package backup_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/backup"
)

// file returns a backup as a client saves it.
func file(records []byte) []byte {
	padded := append(records, make([]byte, (backup.Align-len(records)%backup.Align)%backup.Align)...)
	sum := sha256.Sum256(padded)
	return append(padded, sum[:]...)
}

func written(t *testing.T, keys int) []byte {
	t.Helper()
	var out bytes.Buffer
	w := backup.NewWriter(&out, 300)
	w.Bump(1000)
	w.Lease(&pb.LeaseGrantRequest{ID: 5, TTL: 100})
	w.Auth(&pb.AuthStatusResponse{Enabled: true, AuthRevision: 4})
	w.Role(&authpb.Role{Name: []byte("reader")})
	w.User(&authpb.User{Name: []byte("alice"), Password: []byte("hash"), Roles: []string{"reader"}})
	for i := range keys {
		w.Key(&mvccpb.KeyValue{Key: fmt.Appendf(nil, "key%03d", i), Value: []byte("v"), CreateRevision: 2, ModRevision: int64(i) + 2, Version: 1, Lease: 5})
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func read(b []byte, c backup.Contents) (backup.Summary, error) {
	return backup.Read(bytes.NewReader(b), int64(len(b)), c)
}

func TestRead(t *testing.T) {
	records := written(t, 200)
	whole := file(slices.Clone(records))
	var rev, lease int64
	var keys, users []string
	got, err := read(whole, backup.Contents{
		Revision: func(r int64) error { rev = r; return nil },
		Lease:    func(l *pb.LeaseGrantRequest) error { lease = l.ID; return nil },
		Auth: func(s *pb.AuthStatusResponse) error {
			users = append(users, fmt.Sprint(s.Enabled, s.AuthRevision))
			return nil
		},
		Role: func(r *authpb.Role) error { users = append(users, string(r.Name)); return nil },
		User: func(u *authpb.User) error { users = append(users, string(u.Name)+string(u.Password)); return nil },
		Key:  func(kv *mvccpb.KeyValue) error { keys = append(keys, string(kv.Key)); return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	hash := crc32.Checksum(records[:len(records)-6], crc32.MakeTable(crc32.Castagnoli))
	want := backup.Summary{Version: backup.Version, Hash: hash, Revision: 300, Bump: 1000, Keys: 200, Leases: 1, Users: 1, Roles: 1, Size: int64(len(whole))}
	if got != want || rev != 300 || lease != 5 || len(keys) != 200 || keys[199] != "key199" {
		t.Errorf("%+v, want %+v; revision %d, lease %d, keys %v", got, want, rev, lease, keys)
	}
	if !slices.Equal(users, []string{"true 4", "reader", "alicehash"}) {
		t.Errorf("users are %q", users)
	}
	failed := errors.New("failed")
	if _, err := read(whole, backup.Contents{Key: func(*mvccpb.KeyValue) error { return failed }}); !errors.Is(err, failed) {
		t.Errorf("a failing reader: %v", err)
	}
}

// Records of letters that come later are skipped.
func TestUnknownRecord(t *testing.T) {
	records := written(t, 3)
	records = append(records[:len(records)-6], 'Z', 3, 1, 2, 3)
	records = binary.BigEndian.AppendUint32(append(records, 'e', 4), crc32.Checksum(records, crc32.MakeTable(crc32.Castagnoli)))
	if got, err := read(file(records), backup.Contents{}); err != nil || got.Keys != 3 {
		t.Errorf("%+v, %v", got, err)
	}
}

// Wherever a backup ends too early it is refused, and wherever a bit of it is another.
func TestCutAndDamaged(t *testing.T) {
	whole := file(written(t, 40))
	for n := sha256.Size + len("latchkey backup 1\n"); n < len(whole); n++ {
		if _, err := read(whole[:n], backup.Contents{}); !errors.Is(err, backup.ErrCut) {
			t.Fatalf("%d of %d bytes: %v", n, len(whole), err)
		}
	}
	for i := range whole {
		b := slices.Clone(whole)
		b[i] ^= 0x40
		if _, err := read(b, backup.Contents{}); err == nil {
			t.Fatalf("byte %d is another, which nobody sees", i)
		}
	}
	if _, err := read(append(slices.Clone(whole), whole[:512]...), backup.Contents{}); !errors.Is(err, backup.ErrDamaged) {
		t.Errorf("with more behind it: %v", err)
	}
	// What was changed and given a SHA-256 of its own.
	if _, err := read(file(bytes.Replace(written(t, 40), []byte("key007"), []byte("key008"), 1)), backup.Contents{}); !errors.Is(err, backup.ErrDamaged) {
		t.Errorf("another key: %v", err)
	}
	// What was cut and given a length and a checksum of its own.
	if _, err := read(file(written(t, 40)[:700]), backup.Contents{}); err == nil {
		t.Error("a backup without its end is read")
	}
	if _, err := backup.Read(io.MultiReader(bytes.NewReader(whole[:600])), int64(len(whole)), backup.Contents{}); !errors.Is(err, backup.ErrCut) {
		t.Errorf("a file that is shorter than it was: %v", err)
	}
}

func TestOtherFiles(t *testing.T) {
	for _, tc := range []struct {
		name string
		file []byte
		want error
	}{
		{"empty", nil, backup.ErrForeign},
		{"text", []byte("so it goes"), backup.ErrForeign},
		{"of a later version", file([]byte("latchkey backup 2\n\x01")), backup.ErrVersion},
	} {
		if _, err := read(tc.file, backup.Contents{}); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
