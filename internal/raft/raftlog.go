package raft

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/lni/dragonboat/v4/logger"
)

// dragonboat has one logger a process. It writes to the logger of the host that
// was opened last.
var (
	raftLogOnce sync.Once
	raftLog     atomic.Pointer[slog.Logger]
	raftFatal   atomic.Pointer[func(error)]
)

// setRaftLogger routes dragonboat's log to l, and what it can't go on after to fatal,
// which may be nil.
func setRaftLogger(l *slog.Logger, fatal func(error)) {
	raftLog.Store(l)
	raftFatal.Store(&fatal)
	raftLogOnce.Do(func() {
		logger.SetLoggerFactory(func(pkg string) logger.ILogger { return raftLogger{pkg} })
	})
}

// raftLogger passes one package's messages on, each one level lower than
// dragonboat calls it: its warnings are routine in an election. Panicf panics,
// as dragonboat relies on.
type raftLogger struct{ pkg string }

// SetLevel does nothing: slog's handler decides.
func (raftLogger) SetLevel(logger.LogLevel) {}

// Debugf drops the message.
func (raftLogger) Debugf(string, ...any) {}

// Infof logs at a level below debug.
func (g raftLogger) Infof(format string, args ...any) { g.log(slog.LevelDebug-4, format, args) }

// Warningf logs at debug level.
func (g raftLogger) Warningf(format string, args ...any) { g.log(slog.LevelDebug, format, args) }

// Errorf logs at warning level. Of hosts that can't be reached, which dragonboat tells
// at each attempt, the owner of the wire tells once.
func (g raftLogger) Errorf(format string, args ...any) {
	level := slog.LevelWarn
	if g.pkg == "transport" {
		level = slog.LevelDebug
	}
	g.log(level, format, args)
}

// forgotten begins what dragonboat says when a leader counts on entries that the log
// does not have.
const forgotten = "invalid commitTo index"

// Panicf logs at error level and panics. With an error alone, which is how dragonboat ends
// where it can't write or apply, the process ends with the error.
func (g raftLogger) Panicf(format string, args ...any) {
	if fatal := *raftFatal.Load(); fatal != nil && len(args) == 1 {
		if err := storageError(args[0]); err != nil {
			fatal(err)
		}
	}
	g.log(slog.LevelError, format, args)
	if strings.HasPrefix(format, forgotten) {
		g.log(slog.LevelError, "the log lacks entries that it had acknowledged: the data directory is an older copy; "+remedy, nil)
	}
	panic(fmt.Sprintf(format, args...)) //nolint:forbidigo // dragonboat counts on it that Panicf does not return
}

func (g raftLogger) log(level slog.Level, format string, args []any) {
	l := raftLog.Load()
	ctx := context.Background()
	if l == nil || !l.Enabled(ctx, level) {
		return
	}
	l.LogAttrs(ctx, level, "raft", slog.String("package", g.pkg), slog.String("text", fmt.Sprintf(format, args...)))
}
