package command_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/latchkey-db/latchkey/internal/command"
)

// What can't be is said, and leaves nothing behind. What is recovered is for e2e/cluster.
func TestRecoverArguments(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	output := filepath.Join(dir, "backup")
	for _, tc := range []struct {
		name string
		args []string
		code int
		err  string
	}{
		{"help", []string{"--help"}, 0, "(?s)^Usage: latchkey recover DIRECTORY... --output FILE.*-output"},
		{"no directory", []string{"--output", output}, 2, "no data directory; see --help"},
		{"no output", []string{dir}, 2, "no --output; see --help"},
		{"unknown flag", []string{dir, "--no"}, 2, "see --help"},
		{"output is there", []string{dir, "--output", there}, 1, "name another file"},
		{"nothing there", []string{dir, "--output", output}, 1, "latchkey recover: data directory holds nothing of a cluster: there is no node.json in .*; or name it no more"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out, errs strings.Builder
			code := command.Run(t.Context(), append([]string{"recover"}, tc.args...), command.Streams{Out: &out, Err: &errs})
			if code != tc.code || out.Len() > 0 || !regexp.MustCompile(tc.err).MatchString(errs.String()) {
				t.Errorf("%d, %q, %q", code, out.String(), errs.String())
			}
		})
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
