package clients

import (
	"testing"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// What passes with one shard passes with four.
func TestClientsOnFourShards(t *testing.T) { harness.RunOnFourShards(t, "clients", 2, "TestGoClients") }
