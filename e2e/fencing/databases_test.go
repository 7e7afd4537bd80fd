//go:build clients

package fencing

import (
	"context"
	"database/sql"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// server is a database server that a test has started.
type server struct {
	t   *testing.T
	dir string
	// owner is who runs it, nil for the user of the test.
	owner *syscall.Credential
}

// newServer makes a directory that the user of the name can write, where the test is run by
// root.
func newServer(t *testing.T, name string) *server {
	t.Helper()
	owner, err := harness.UserOf(name)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := harness.Dir("latchkey-db-") // a test's own is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	if owner != nil {
		if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	return &server{t, dir, owner}
}

// command is a program as the server's owner runs it.
func (s *server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "LANG=C.UTF-8", "HOME=" + s.dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.owner}
	return cmd
}

func (s *server) run(name string, args ...string) {
	s.t.Helper()
	if out, err := s.command(name, args...).CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v\n%s", filepath.Base(name), err, out)
	}
}

// start starts the server, for as long as the test, and waits until ready returns nil.
func (s *server) start(ready func() error, name string, args ...string) {
	s.t.Helper()
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := s.command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = log.Close()
	})
	limit := time.After(harness.LongWait)
	for {
		err := ready()
		if err == nil {
			return
		}
		select {
		case <-limit:
		case err = <-ended:
			ended <- err // for the cleanup
		case <-time.After(50 * time.Millisecond):
			continue
		}
		text, _ := os.ReadFile(log.Name())
		s.t.Fatalf("%s does not answer: %v\n%s", filepath.Base(name), err, text)
	}
}

// postgres starts PostgreSQL and returns how to reach it.
func postgres(t *testing.T) (dsn string) {
	t.Helper()
	s := newServer(t, "postgres")
	bin, err := harness.PostgresPrograms()
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(s.dir, "data")
	s.run(filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	dsn = "host=" + s.dir + " user=postgres dbname=postgres"
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ready := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), harness.Promptly)
		defer cancel()
		return db.PingContext(ctx)
	}
	s.start(ready, filepath.Join(bin, "postgres"), "-D", data, "-c", "listen_addresses=", "-c", "unix_socket_directories="+s.dir, "-c", "fsync=off")
	return dsn
}
