package e2e

import (
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// fastReconnect lets clients find a restarted server without gRPC's seconds of
// patience.
var fastReconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond},
	MinConnectTimeout: time.Second,
}

func TestMain(m *testing.M) {
	if role := os.Getenv(workerEnv); role != "" {
		os.Exit(work(role))
	}
	os.Exit(harness.Run(m))
}
