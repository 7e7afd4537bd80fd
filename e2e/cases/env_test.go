package cases

import (
	"testing"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// served is a server with the calls that only cases make.
type served struct{ *harness.Served }

// serve starts a server on an empty directory.
func serve(tb testing.TB, args ...string) *served {
	tb.Helper()
	return &served{harness.Serve(tb, args...)}
}

// What passes with one shard passes with four.
func TestCasesOnFourShards(t *testing.T) { harness.RunOnFourShards(t, "cases", 4) }
