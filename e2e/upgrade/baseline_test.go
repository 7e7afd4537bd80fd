//go:build upgrade

package upgrade

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// baseline is the subject of the commit that is upgraded from: the last that changed formats in
// a way that earlier nodes were not made for. At a release it becomes the subject of the
// commit that was released last, and from then on it moves with each release.
const baseline = "system: say what an unknown field means, and agree on a cluster version"

// earlier builds the server as it was at the baseline and returns its path.
func earlier(t *testing.T) string {
	t.Helper()
	root, err := git("rev-parse", "--show-toplevel")
	if err != nil {
		t.Fatalf("the sources are in no repository: %v", err)
	}
	commits, err := git("log", "--fixed-strings", "--grep", baseline, "--format=%H %s")
	if err != nil {
		t.Fatal(err)
	}
	var commit string
	for line := range strings.Lines(commits) {
		hash, subject, _ := strings.Cut(strings.TrimSpace(line), " ")
		if subject == baseline {
			commit = hash
			break
		}
	}
	if commit == "" {
		t.Fatalf("no commit has the subject %q; a clone needs its history for this test", baseline)
	}
	bin, err := build(root, commit)
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// build builds the server of a commit.
func build(root, commit string) (string, error) {
	dir, err := harness.Dir("latchkey-upgrade-")
	if err != nil {
		return "", err
	}
	archive, source, bin := filepath.Join(dir, "source.tar"), filepath.Join(dir, "source"), filepath.Join(dir, "latchkey")
	if err := os.Mkdir(source, 0o755); err != nil {
		return "", err
	}
	compile := exec.Command("go", "build", "-o", bin, "./cmd/latchkey")
	compile.Dir = source
	for _, cmd := range []*exec.Cmd{
		exec.Command("git", "-C", root, "archive", "--output", archive, commit),
		exec.Command("tar", "-xf", archive, "-C", source),
		compile,
	} {
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w: %s", commit, err, out)
		}
	}
	return bin, nil
}

// git returns what git says.
func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("%w: %s", err, failed.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
