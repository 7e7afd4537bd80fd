//go:build clients

package fencing

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// blocks returns the code blocks of docs/fencing.md in a language.
func blocks(t *testing.T, language string) (found []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/fencing.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```").FindAllSubmatch(text, -1) {
		found = append(found, string(m[1]))
	}
	return found
}

// steps are tokens that come one after the other, and what has been seen behind each.
var steps = []struct{ token, newest string }{
	{"5", "5"},
	{"5", "5"},
	{"4", "5"},
	{"9", "9"},
	{"10", "10"},
	{"9", "10"},
	{"9007199254740993", "9007199254740993"},
	{"9007199254740992", "9007199254740993"},
}

// What the page says for MySQL holds on MariaDB.
func TestRecipeOfMariaDB(t *testing.T) {
	sql := blocks(t, "sql")
	if len(sql) != 3 {
		t.Fatalf("docs/fencing.md has %d blocks of SQL", len(sql))
	}
	s := newServer(t, "mysql")
	data, socket := filepath.Join(s.dir, "data"), filepath.Join(s.dir, "socket")
	s.run("mariadb-install-db", "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db")
	query := func(statements string) (string, error) {
		out, err := s.command("mariadb", "--no-defaults", "--socket="+socket, "--user=root", "--skip-column-names", "--batch", "-e", statements).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	ready := func() error { _, err := query("SELECT 1"); return err }
	s.start(ready, "mariadbd", "--no-defaults", "--datadir="+data, "--socket="+socket, "--skip-networking",
		"--pid-file="+filepath.Join(s.dir, "pid"), "--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=0")
	if out, err := query("CREATE DATABASE bank; USE bank; " + sql[1]); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, step := range steps {
		got, err := query(fmt.Sprintf("USE bank; SET @resource = 'accounts/7', @token = %s; BEGIN; %s COMMIT;", step.token, sql[2]))
		if err != nil || got != step.newest {
			t.Errorf("%s: %s, %v, want %s", step.token, got, err, step.newest)
		}
	}
}

func TestRecipeOfRedis(t *testing.T) {
	lua := blocks(t, "lua")
	if len(lua) != 1 {
		t.Fatalf("docs/fencing.md has %d blocks of Lua", len(lua))
	}
	s := newServer(t, "redis")
	socket := filepath.Join(s.dir, "socket")
	run := func(args ...string) (string, error) {
		out, err := s.command("redis-cli", append([]string{"-s", socket}, args...)...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	ready := func() error { _, err := run("PING"); return err }
	s.start(ready, "redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", s.dir)
	kept := ""
	for i, step := range steps {
		value, want := fmt.Sprint("value ", i), "0"
		if step.token == step.newest {
			kept, want = value, "1"
		}
		got, err := run("EVAL", lua[0], "1", "account", step.token, value)
		if err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", step.token, got, err, want)
		}
		if got, err := run("HGET", "account", "value"); err != nil || got != kept {
			t.Errorf("behind %s the value is %q, %v, want %q", step.token, got, err, kept)
		}
	}
}
