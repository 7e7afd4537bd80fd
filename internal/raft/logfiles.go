package raft

import (
	"context"
	"log/slog"
)

// notReused tells operators of a disk that begins to fail.
func notReused(name string, err error) {
	if log := raftLog.Load(); log != nil {
		log.LogAttrs(context.Background(), slog.LevelWarn, "a log file can't be used again, a new one is made",
			slog.String("file", name), slog.String("error", err.Error()))
	}
}
