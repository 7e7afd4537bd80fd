//go:build clients

package fencing

import (
	"bufio"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/latchkey-db/latchkey/e2e/harness"
	"github.com/latchkey-db/latchkey/fence/fencesql"
)

// A holder of a lock is stopped for longer than its lease, and wakes with a write in hand,
// behind one of the next holder. The token keeps the write out, and nothing else does.
func TestPausedHolder(t *testing.T) {
	program := filepath.Join(t.TempDir(), "writer")
	if out, err := exec.Command("go", "build", "-o", program, "./writer").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dsn := postgres(t)
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	store := harness.NewProcess(t)
	for _, fenced := range []bool{true, false} {
		t.Run(fmt.Sprintf("fence=%v", fenced), func(t *testing.T) {
			makeAccount(t, db)
			start := func(name string) *holder {
				return startHolder(t, program, "-endpoints", store.Addr, "-dsn", dsn, "-lock", t.Name(),
					"-ttl", "3s", fmt.Sprintf("-fence=%v", fenced), name)
			}
			a := start("a")
			tokenA := a.token()
			a.signal(syscall.SIGSTOP)
			b := start("b")
			tokenB := b.token() // behind the end of a's lease
			if tokenB <= tokenA {
				t.Errorf("the next holder's token is %d, behind %d", tokenB, tokenA)
			}
			b.write("b")
			if got := b.line(); got != "b wrote b" {
				t.Fatalf("the next holder says %q", got)
			}
			a.write("a")
			a.signal(syscall.SIGCONT)
			said := a.line()
			var owner string
			if err := db.QueryRowContext(t.Context(), `SELECT owner FROM account WHERE id = 7`).Scan(&owner); err != nil {
				t.Fatal(err)
			}
			if !fenced {
				if said != "a wrote a" || owner != "a" {
					t.Errorf("without a fence the stale holder says %q, and the row has %q: the test shows nothing", said, owner)
				}
				return
			}
			if !strings.HasPrefix(said, "a refused: ") || !strings.Contains(said, fmt.Sprintf("has seen %d, this is %d", tokenB, tokenA)) {
				t.Errorf("the stale holder says %q", said)
			}
			if code := a.exit(); code != 3 {
				t.Errorf("the stale holder ended with %d", code)
			}
			if owner != "b" {
				t.Errorf("the row has %q", owner)
			}
			b.write("b again")
			if got := b.line(); got != "b wrote b again" {
				t.Errorf("the holder says %q behind the refusal", got)
			}
		})
	}
}

func makeAccount(t *testing.T, db *sql.DB) {
	t.Helper()
	for _, statement := range []string{
		`DROP TABLE IF EXISTS account`,
		`CREATE TABLE account (id INT PRIMARY KEY, owner TEXT NOT NULL)`,
		`INSERT INTO account VALUES (7, 'nobody'), (8, 'nobody')`,
		fencesql.AddColumn("account"),
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// holder is a process of the program writer.
type holder struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.Writer
	lines chan string
}

func startHolder(t *testing.T, program string, args ...string) *holder {
	t.Helper()
	cmd := exec.Command(program, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &holder{t, cmd, in, make(chan string, 16)}
	go func() {
		defer close(h.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			h.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return h
}

// line returns the next line that the process prints.
func (h *holder) line() string {
	h.t.Helper()
	select {
	case line := <-h.lines:
		return line
	case <-time.After(harness.LongWait):
		h.t.Fatal("a writer says nothing")
		return ""
	}
}

func (h *holder) token() (token int64) {
	h.t.Helper()
	line := h.line()
	var name string
	if _, err := fmt.Sscanf(line, "%s holds %d", &name, &token); err != nil {
		h.t.Fatalf("a writer says %q", line)
	}
	return token
}

func (h *holder) write(owner string) {
	h.t.Helper()
	if _, err := fmt.Fprintln(h.in, owner); err != nil {
		h.t.Fatal(err)
	}
}

func (h *holder) signal(s syscall.Signal) {
	h.t.Helper()
	if err := h.cmd.Process.Signal(s); err != nil {
		h.t.Fatal(err)
	}
}

func (h *holder) exit() int {
	h.t.Helper()
	for range h.lines { // until it has ended
		continue
	}
	err := h.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}
