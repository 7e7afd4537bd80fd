package clients

import (
	"os"
	"testing"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(workerEnv); role != "" {
		os.Exit(work(role))
	}
	os.Exit(harness.Run(m))
}
