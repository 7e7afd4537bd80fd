// Package etcdlog hands what etcd's client library logs, through zap, to a
// slog.Logger. It is the one place that knows zap; without a logger of its
// caller's the library would write to standard error by itself.
package etcdlog

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// New returns a zap logger that writes to log. Fields become attributes, ordered
// by key; objects and namespaces become groups. Levels above "error" are logged
// as errors, and zap still panics or exits after them.
func New(log *slog.Logger) *zap.Logger {
	return zap.New(&core{handler: log.Handler()})
}

// core is a zapcore.Core over a slog handler. It is immutable.
type core struct {
	handler slog.Handler
	fields  []zapcore.Field
}

var _ zapcore.Core = (*core)(nil)

// Enabled reports whether the handler takes records of the level.
func (c *core) Enabled(l zapcore.Level) bool {
	return c.handler.Enabled(context.Background(), level(l))
}

// With returns a core that adds fields to every entry.
func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{handler: c.handler, fields: slices.Concat(c.fields, fields)}
}

// Check adds the core to an entry that the handler takes.
func (c *core) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write hands an entry to the handler.
func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range slices.Concat(c.fields, fields) {
		f.AddTo(enc)
	}
	r := slog.NewRecord(e.Time, level(e.Level), e.Message, 0)
	if e.LoggerName != "" {
		r.AddAttrs(slog.String("logger", e.LoggerName))
	}
	r.AddAttrs(attrs(enc.Fields)...)
	if err := c.handler.Handle(context.Background(), r); err != nil {
		return fmt.Errorf("handle record: %w", err)
	}
	return nil
}

// Sync does nothing: slog keeps no buffer.
func (*core) Sync() error { return nil }

// attrs returns the fields by ascending key, maps as groups.
func attrs(fields map[string]any) []slog.Attr {
	all := make([]slog.Attr, 0, len(fields))
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if inner, ok := fields[key].(map[string]any); ok {
			all = append(all, slog.GroupAttrs(key, attrs(inner)...))
			continue
		}
		all = append(all, slog.Any(key, fields[key]))
	}
	return all
}

func level(l zapcore.Level) slog.Level {
	switch {
	case l < zapcore.InfoLevel:
		return slog.LevelDebug
	case l < zapcore.WarnLevel:
		return slog.LevelInfo
	case l < zapcore.ErrorLevel:
		return slog.LevelWarn
	}
	return slog.LevelError
}
