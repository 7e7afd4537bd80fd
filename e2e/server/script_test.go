package server

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// The binary's flags, output and exit codes are described by the scripts.
func TestScripts(t *testing.T) {
	bin, err := harness.Server()
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(env *testscript.Env) error {
			first, second := harness.FreeAddr(t), harness.FreeAddr(t)
			env.Setenv("PATH", filepath.Dir(bin)+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("ADDR", first)
			env.Setenv("URL", "http://"+first)
			env.Setenv("URL2", "http://"+second)
			env.Setenv("LATCHKEY_LISTEN_PEER_URLS", harness.AnyPeerURL)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"await": awaitHealthy,
			"subst": substitute,
		},
		RequireExplicitExec: true,
	})
}

// awaitHealthy is "await URL": it waits until a server says that it is well.
func awaitHealthy(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: await URL")
	}
	end := time.Now().Add(harness.LongWait)
	for time.Now().Before(end) {
		r, err := http.Get(args[0] + "/health")
		if err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return
			}
		}
		pause := time.NewTimer(20 * time.Millisecond)
		<-pause.C
	}
	ts.Fatalf("no server at %s", args[0])
}

// substitute is "subst FILE": it puts the script's variables into a file.
func substitute(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: subst FILE")
	}
	text := os.Expand(ts.ReadFile(args[0]), ts.Getenv)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}
