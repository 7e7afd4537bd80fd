package server

import (
	"testing"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// What passes with one shard passes with four.
func TestServerOnFourShards(t *testing.T) { harness.RunOnFourShards(t, "server", 2) }
