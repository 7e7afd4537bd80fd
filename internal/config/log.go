package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
)

// OpenLog returns the logger that the configuration asks for. stdout and stderr
// are the process's; other outputs are opened, and closed by the closer. The
// outputs are written one after the other.
func (c *Config) OpenLog(stdout, stderr io.Writer) (*slog.Logger, io.Closer, error) {
	var (
		outputs []io.Writer
		files   closers
	)
	for _, name := range c.LogOutputs {
		switch name {
		case "default", "stderr", "systemd/journal": // systemd keeps standard error
			outputs = append(outputs, stderr)
		case "stdout":
			outputs = append(outputs, stdout)
		default:
			f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err != nil {
				return nil, nil, errors.Join(fmt.Errorf("open log output: %w", err), files.Close())
			}
			outputs, files = append(outputs, f), append(files, f)
		}
	}
	return slog.New(c.logHandler(io.MultiWriter(outputs...))), files, nil
}

func (c *Config) logHandler(w io.Writer) slog.Handler {
	o := &slog.HandlerOptions{Level: c.LogLevel}
	if c.LogFormat == JSONLog {
		return slog.NewJSONHandler(w, o)
	}
	return slog.NewTextHandler(w, o)
}

// closers closes all of its elements.
type closers []io.Closer

// Close closes every element and returns all errors.
func (cs closers) Close() error {
	var errs []error
	for _, c := range cs {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
