package cluster

import (
	"flag"
	"os"
	"testing"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

func TestMain(m *testing.M) {
	// Clusters wait more than they work, and so more of them run side by side than there
	// are processors.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	os.Exit(harness.Run(m))
}
