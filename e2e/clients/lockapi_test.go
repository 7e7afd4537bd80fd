package clients

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// The curl lines of README.md and docs/lock-api.md about locks are answered as it says there.
func TestLockDocs(t *testing.T) {
	for file, least := range map[string]int{"README.md": 2, "docs/lock-api.md": 15} {
		t.Run(file, func(t *testing.T) {
			text, err := os.ReadFile("../../" + file)
			if err != nil {
				t.Fatal(err)
			}
			p := harness.NewProcess(t)
			e := &examples{T: t, real: map[string]string{"localhost:2379": p.Addr}}
			pairs := regexp.MustCompile("(?ms)^```sh\n(curl [^\n]*)\n```\n\n```(json|text)\n(.*?)\n```").FindAllStringSubmatch(string(text), -1)
			if len(pairs) < least {
				t.Fatalf("%d examples", len(pairs))
			}
			for _, pair := range pairs {
				if pair[2] == "json" {
					e.answered(pair[1], pair[3])
				} else {
					e.streamed(pair[1], pair[3])
				}
			}
		})
	}
}

// examples are requests in a text with their answers.
type examples struct {
	*testing.T

	// real has what stands in the text for what was answered.
	real map[string]string
}

func (e *examples) run(line string) (string, error) {
	for said, is := range e.real {
		line = strings.ReplaceAll(line, said, is)
	}
	out, err := exec.Command("bash", "-euc", line).Output()
	return string(out), err
}

// answered runs a line whose answer is an object.
func (e *examples) answered(line, said string) {
	e.Helper()
	out, err := e.run(line)
	if err != nil {
		e.Fatalf("%s: %v", line, err)
	}
	e.compare(line, said, out)
}

// streamed runs a line that goes on until it is ended.
func (e *examples) streamed(line, said string) {
	e.Helper()
	out, err := e.run("timeout 5 " + line + " | head -n " + fmt.Sprint(strings.Count(said, "\n")+1))
	if err != nil {
		e.Fatalf("%s: %v", line, err)
	}
	got, want := strings.Split(strings.TrimSpace(out), "\n"), strings.Split(said, "\n")
	if len(got) != len(want) {
		e.Fatalf("%s: %s", line, out)
	}
	for i := range want {
		name, data, _ := strings.Cut(want[i], ": ")
		gotName, gotData, _ := strings.Cut(got[i], ": ")
		switch {
		case gotName != name, name == "event" && gotData != data:
			e.Errorf("%s: %q, want %q", line, got[i], want[i])
		case name == "data":
			e.compare(line, data, gotData)
		}
	}
}

// compare compares an answer with what is said of it, and remembers tokens and sessions.
func (e *examples) compare(line, said, got string) {
	e.Helper()
	var want, is any
	for text, into := range map[string]*any{said: &want, got: &is} {
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber()
		if err := decoder.Decode(into); err != nil {
			e.Fatalf("%s: %v: %s", line, err, text)
		}
	}
	e.same(line, "", want, is)
}

// vary are the fields whose values are those of a run.
var vary = []string{"session_id", "key", "cursor", "fencing_token", "revision", "waited_ms", "remaining_ms"}

func (e *examples) same(line, field string, want, is any) {
	e.Helper()
	switch want := want.(type) {
	case map[string]any:
		is, _ := is.(map[string]any)
		if a, b := slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(is)); !slices.Equal(a, b) {
			e.Errorf("%s: %s has %q, want %q", line, field, b, a)
		}
		for name, value := range want {
			e.same(line, name, value, is[name])
		}
	case []any:
		is, _ := is.([]any)
		if len(is) != len(want) {
			e.Fatalf("%s: %d %s, want %d", line, len(is), field, len(want))
		}
		for i := range want {
			e.same(line, field, want[i], is[i])
		}
	default:
		if slices.Contains(vary, field) || strings.Contains(field, "epoch") || field == "new_expires_at" {
			if field == "session_id" || field == "fencing_token" {
				e.real[fmt.Sprint(want)] = fmt.Sprint(is)
			}
			if fmt.Sprintf("%T", is) != fmt.Sprintf("%T", want) {
				e.Errorf("%s: %s is %v, want %v", line, field, is, want)
			}
			return
		}
		if want != is {
			e.Errorf("%s: %s is %v, want %v", line, field, is, want)
		}
	}
}
