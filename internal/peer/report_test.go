package peer

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// Whoever reads that a node can't be reached reads at the same level that it was again.
func TestTroubleAndItsEndAreToldAtOneLevel(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	m := New(Config{Log: log})
	defer m.Close()
	r := &reporter{m: m, node: 7}
	r.over()
	r.report(errors.New("gone"))
	r.report(errors.New("gone"))
	r.over()
	r.over()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "can't be reached") || !strings.Contains(lines[1], "reached again") {
		t.Errorf("logged:\n%s", out.String())
	}
}
