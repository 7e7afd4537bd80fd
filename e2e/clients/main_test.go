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
	if addr := os.Getenv(holderEnv); addr != "" {
		os.Exit(holdLock(addr))
	}
	os.Exit(harness.Run(m))
}
