package raft

import (
	"log/slog"
	"testing"
)

// The memory file systems make dragonboat's log store complain on the standard
// logger that they have no disk usage.
func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	m.Run()
}
