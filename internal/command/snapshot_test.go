package command_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/backup"
	"github.com/latchkey-db/latchkey/internal/command"
)

// saved returns a backup with one lease and two keys, as etcdctl saves it.
func saved(t *testing.T) []byte {
	t.Helper()
	return savedWith(t, 0)
}

// savedWith is saved, of a backup that was recovered if bump is not 0.
func savedWith(t *testing.T, bump int64) []byte {
	t.Helper()
	var out bytes.Buffer
	w := backup.NewWriter(&out, 7)
	if bump > 0 {
		w.Bump(bump)
	}
	w.Lease(&pb.LeaseGrantRequest{ID: 5, TTL: 100})
	w.Auth(&pb.AuthStatusResponse{AuthRevision: 4})
	w.Role(&authpb.Role{Name: []byte("reader")})
	w.User(&authpb.User{Name: []byte("alice"), Roles: []string{"reader"}})
	w.User(&authpb.User{Name: []byte("bob")})
	w.Key(&mvccpb.KeyValue{Key: []byte("a"), CreateRevision: 2, ModRevision: 2, Version: 1})
	w.Key(&mvccpb.KeyValue{Key: []byte("b"), CreateRevision: 3, ModRevision: 7, Version: 2})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	out.Write(make([]byte, backup.Align-out.Len()))
	sum := sha256.Sum256(out.Bytes())
	return append(out.Bytes(), sum[:]...)
}

// etcdSnapshot returns what was saved of an etcd 3.6.
func etcdSnapshot(t *testing.T) []byte {
	t.Helper()
	f, err := os.Open("../etcdsnapshot/testdata/etcd-3.6.db.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A restore that fails leaves nothing, and one that succeeds says what it has made.
func TestSnapshotRestore(t *testing.T) {
	whole, snapshot, recovered := saved(t), etcdSnapshot(t), savedWith(t, 1000)
	for _, tc := range []struct {
		name     string
		file     []byte
		args     []string
		code     int
		out, err string
	}{
		{"own", whole, nil, 0, "holds node default of a new cluster with the backup of revision 7\n$", "^$"},
		{"etcd's", snapshot, nil, 0, "holds node default of a new cluster with the backup of revision 116\n$", "^$"},
		{"copied from etcd", snapshot[:len(snapshot)-sha256.Size], []string{"--skip-hash-check"}, 0, "revision 116", "^$"},
		{"cut", whole[:300], nil, 1, "^$", "the backup is cut"},
		{"etcd's, damaged", append(snapshot[:len(snapshot)-1:len(snapshot)-1], 0), nil, 1, "^$", "the backup is damaged: its SHA-256 is wrong"},
		{"no other node", whole, []string{"--initial-cluster", "other=http://127.0.0.1:1"}, 1, "^$", "default"},
		{"recovered", recovered, nil, 0, "revision 7\n$", "^$"},
		{"recovered, higher", recovered, []string{"--bump-revision", "1001", "--mark-compacted"}, 0, "revision 7\n$", "^$"},
		{"recovered, too low", recovered, []string{"--bump-revision", "999"}, 2, "^$", "must be 1000 at least"},
		{"recovered, not bumped", recovered, []string{"--bump-revision=0"}, 2, "^$", "must be 1000 at least"},
		{"recovered, not compacted", recovered, []string{"--mark-compacted=false"}, 2, "^$", "can't be false"},
		{"too far", whole, []string{"--bump-revision", "-1"}, 2, "^$", "--bump-revision"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			path, data := filepath.Join(dir, "backup"), filepath.Join(dir, "data")
			if err := os.WriteFile(path, tc.file, 0o600); err != nil {
				t.Fatal(err)
			}
			var out, errs strings.Builder
			args := append([]string{"snapshot", "restore", path, "--data-dir", data}, tc.args...)
			code := command.Run(t.Context(), args, command.Streams{Out: &out, Err: &errs})
			if code != tc.code || !regexp.MustCompile(tc.out).MatchString(out.String()) || !regexp.MustCompile(tc.err).MatchString(errs.String()) {
				t.Errorf("%d, %q, %q", code, out.String(), errs.String())
			}
			if strings.HasPrefix(tc.name, "recovered") && code == 0 {
				identity, err := os.ReadFile(filepath.Join(data, "node.json"))
				if err != nil || !regexp.MustCompile(`"bump": 100[01],\s*"mark_compacted": true`).Match(identity) {
					t.Errorf("it is restored as %s, %v", identity, err)
				}
			}
			if _, err := os.Stat(data); (err == nil) != (code == 0) {
				t.Errorf("the directory after exit code %d: %v", code, err)
			}
		})
	}
}

func TestSnapshotStatus(t *testing.T) {
	whole, snapshot := saved(t), etcdSnapshot(t)
	damaged := bytes.Replace(whole, []byte("reader"), []byte("Reader"), 1)
	for _, tc := range []struct {
		name     string
		file     []byte
		args     []string
		code     int
		out, err string
	}{
		{"table", whole, nil, 0, `(?s)^HASH +REVISION +TOTAL KEYS +TOTAL SIZE +VERSION +LEASES +USERS +ROLES\n[0-9a-f]{1,8} +7 +2 +544 B +1 +1 +2 +1\n$`, "^$"},
		{"JSON", whole, []string{"--json"}, 0, `^{"hash":[0-9]+,"revision":7,"totalKey":2,"totalSize":544,"version":"1","leases":1,"users":2,"roles":1}\n$`, "^$"},
		{"recovered", savedWith(t, 1000), nil, 0, `(?s)^HASH .*\n[0-9a-f]{1,8} +7 +2 .*\nrecovered from data directories: .* by 1000 at least.*\n$`, "^$"},
		{"recovered, JSON", savedWith(t, 1000), []string{"--json"}, 0, `"roles":1,"bumpRevision":1000}\n$`, "^$"},
		{"cut", whole[:300], nil, 1, "^$", "/backup: the backup is cut: .*; take another copy of it, or save it again"},
		{"damaged", damaged, nil, 1, "^$", "/backup: the backup is damaged: .*save it again"},
		{"another file", []byte("so it goes"), nil, 1, "^$", "neither a backup of Latchkey nor a snapshot of etcd"},
		{"of etcd", snapshot, nil, 0, `^HASH .*\n3ac765e +116 +50 +73.7 kB +etcd 3.6.0 +2 +3 +1\n$`, "^$"},
		{"of etcd, JSON", snapshot, []string{"--json"}, 0, `^{"hash":61634142,"revision":116,"totalKey":50,"totalSize":73728,"version":"etcd 3.6.0","leases":2,"users":3,"roles":1}\n$`, "^$"},
		{"of etcd, cut", snapshot[:9000], nil, 1, "^$", "/backup: the backup is cut: .*--skip-hash-check"},
		{"copied from etcd", snapshot[:len(snapshot)-sha256.Size], []string{"--skip-hash-check"}, 0, "^HASH", "^$"},
		{"two files", whole, []string{"other"}, 2, "^$", "see --help"},
		{"flags", whole, []string{"--no"}, 2, "^$", "see --help"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "backup")
			if err := os.WriteFile(path, tc.file, 0o600); err != nil {
				t.Fatal(err)
			}
			var out, errs strings.Builder
			args := append([]string{"snapshot", "status", path}, tc.args...)
			code := command.Run(t.Context(), args, command.Streams{Out: &out, Err: &errs})
			if code != tc.code || !regexp.MustCompile(tc.out).MatchString(out.String()) || !regexp.MustCompile(tc.err).MatchString(errs.String()) {
				t.Errorf("%d, %q, %q", code, out.String(), errs.String())
			}
		})
	}
}
