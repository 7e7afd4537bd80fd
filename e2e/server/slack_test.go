package server

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// A server starts its program again, in its process, so that its threads' timers may be late, and
// needs to warn of nothing. What is left out of the environment later is still in the file.
func TestServerStartsItselfAgain(t *testing.T) {
	t.Setenv("GOMAXPROCS", "2") // with one the timers stay exact
	p := harness.NewProcess(t)
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if again := fmt.Sprintf("\x00LATCHKEY_STARTED_AGAIN=%d\x00", p.Cmd.Process.Pid); !bytes.Contains(environ, []byte(again)) {
		t.Errorf("the server has not started again: %q", bytes.ReplaceAll(environ, []byte{0}, []byte{'\n'}))
	}
	if log := p.Log.String(); strings.Contains(log, "level=WARN") {
		t.Errorf("the server warned:\n%s", log)
	}
}
