package lint

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// foreign are texts of docs/operations.md that others print: clients of etcd, etcdctl's tables and the kernel.
var foreign = []string{
	"ALARM NOSPACE", "ALARM CORRUPT", "IS LEADER", "connection refused", "context deadline exceeded",
	"etcdserver: no leader", "etcdserver: mvcc: database space exceeded", "etcdserver: corrupt cluster",
	"can only promote a learner member which is in sync with leader",
}

var (
	quoted = regexp.MustCompile("`([^`]+)`")
	fenced = regexp.MustCompile("(?s)```.*?```")
	// prose is a text of several words, as nodes log or print, and no command, flag or path.
	prose    = regexp.MustCompile(`^[A-Za-z][A-Za-z',:;.… -]* [A-Za-z',:;.… -]+$`)
	commands = regexp.MustCompile(`^(etcdctl|latchkey|member|curl|systemctl) `)
	// gaps are what stands for a name or number: an ellipsis, or one capital letter.
	gaps = regexp.MustCompile(`…| [XY]\b`)
)

// What docs/operations.md says that a node logs or prints is in the code: who looks for a text there finds it.
func TestOperationsQuotesTexts(t *testing.T) {
	files, err := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--", ":/*.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for name := range strings.SplitSeq(strings.TrimRight(string(files), "\x00"), "\x00") {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(text)
	}
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, q := range quoted.FindAllSubmatch(fenced.ReplaceAll(page, nil), -1) {
		text := string(bytes.Join(bytes.Fields(q[1]), []byte(" ")))
		if !prose.MatchString(text) || commands.MatchString(text) {
			continue
		}
		n++
		for _, part := range gaps.Split(text, -1) {
			if !strings.Contains(code.String(), strings.TrimSpace(part)) && !slices.Contains(foreign, text) {
				t.Errorf("%q is nowhere in the code", text)
				break
			}
		}
	}
	if n < 20 {
		t.Errorf("%d texts were found in the page", n)
	}
}
