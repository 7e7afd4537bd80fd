// Package harness is what the packages of end-to-end tests share: the server's binary, a
// process of it with clients, links that can be cut, how large tests are, and the seeds of
// random ones.
package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// BinaryVariable names the server that another process of the tests has built.
const BinaryVariable = "LATCHKEY_E2E_BINARY"

// Server builds the server once for all tests of a process and returns its path. What
// another process of the tests has built of the same sources is not linked again.
var Server = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(BinaryVariable); path != "" {
		return path, nil
	}
	dir, err := Dir("latchkey-e2e-")
	if err != nil {
		return "", err
	}
	if err := lookAtSources(); err != nil {
		return "", fmt.Errorf("look at sources: %w", err)
	}
	path := filepath.Join(dir, "latchkey")
	if err := buildShared(".", "github.com/latchkey-db/latchkey/cmd/latchkey", path); err != nil {
		return "", fmt.Errorf("build server: %w", err)
	}
	return path, nil
})

// lookAtSources has the go command keep no result of tests for other sources of the server: it takes a result for current while the files are
// that the tests themselves have looked at, and the server is built by another process.
func lookAtSources() error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		if root == filepath.Dir(root) {
			return os.ErrNotExist
		}
		root = filepath.Dir(root)
	}
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"), d.Name() == "go.mod":
			_, err = os.Stat(path)
		}
		return err
	})
}

// buildShared builds a command, from within a folder, in another folder that processes
// share, one at a time, and copies it: the go command leaves a binary that is current as it
// is.
func buildShared(from, command, path string) (err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	cache = filepath.Join(cache, "latchkey-e2e")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }() // which unlocks it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	shared := filepath.Join(cache, filepath.Base(path))
	cmd := exec.Command("go", "build", "-o", shared, command)
	cmd.Dir = from
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	binary, err := os.ReadFile(shared)
	if err != nil {
		return err
	}
	return os.WriteFile(path, binary, 0o700)
}

var (
	dirsMu sync.Mutex
	// dirs are removed when the tests are done. Protected by dirsMu.
	dirs []string
)

// Dir makes a directory that lasts longer than a test: until Run returns.
func Dir(prefix string) (string, error) {
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return "", err
	}
	dirsMu.Lock()
	defer dirsMu.Unlock()
	dirs = append(dirs, dir)
	return dir, nil
}

// Run runs the tests, removes what Dir made, and returns what the process exits with.
func Run(m *testing.M) int {
	code := m.Run()
	dirsMu.Lock()
	defer dirsMu.Unlock()
	for _, dir := range dirs {
		_ = os.RemoveAll(dir) // what is left is a temporary file
	}
	return code
}

// Seed returns the seed of a random test's round: a new one, or the one that a replay
// asks for. folder is the test's package, as the go command takes it.
func Seed(tb testing.TB, folder string, round int) uint64 {
	tb.Helper()
	const variable = "LATCHKEY_HISTORY_SEED"
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv(variable); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			tb.Fatal(err)
		}
	}
	tb.Logf("round %d: replay with %s=%d go test %s -run '^%s$'", round, variable, seed, folder, tb.Name())
	return seed
}
