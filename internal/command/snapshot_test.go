package command_test

import (
	"bytes"
	"crypto/sha256"
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
	var out bytes.Buffer
	w := backup.NewWriter(&out, 7)
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

func TestSnapshotStatus(t *testing.T) {
	whole := saved(t)
	damaged := bytes.Replace(whole, []byte("a"), []byte("c"), 2)
	for _, tc := range []struct {
		name     string
		file     []byte
		args     []string
		code     int
		out, err string
	}{
		{"table", whole, nil, 0, `(?s)^HASH +REVISION +TOTAL KEYS +TOTAL SIZE +VERSION +LEASES +USERS +ROLES\n[0-9a-f]{1,8} +7 +2 +544 B +1 +1 +2 +1\n$`, "^$"},
		{"JSON", whole, []string{"--json"}, 0, `^{"hash":[0-9]+,"revision":7,"totalKey":2,"totalSize":544,"version":"1","leases":1,"users":2,"roles":1}\n$`, "^$"},
		{"cut", whole[:300], nil, 1, "^$", "the backup is cut"},
		{"damaged", damaged, nil, 1, "^$", "backup"},
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
