package shard

import (
	"io"
	"log"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // dragonboat's log store prints there that a memory file system has no disk usage
	os.Exit(m.Run())
}
