package node

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func TestNearlyFullDiskStopsWrites(t *testing.T) {
	for _, tc := range []struct {
		name  string
		usage vfs.DiskUsage
		err   error
		want  bool
	}{
		{"empty disk", vfs.DiskUsage{TotalBytes: 100 << 30, AvailBytes: 90 << 30}, nil, false},
		{"large disk, a gigabyte left", vfs.DiskUsage{TotalBytes: 1000 << 30, AvailBytes: 1 << 30}, nil, false},
		{"large disk, less left", vfs.DiskUsage{TotalBytes: 1000 << 30, AvailBytes: 1<<30 - 1}, nil, true},
		{"a twentieth of ten gigabytes", vfs.DiskUsage{TotalBytes: 10 << 30, AvailBytes: 10 << 30 / 20}, nil, false},
		{"less than a twentieth", vfs.DiskUsage{TotalBytes: 10 << 30, AvailBytes: 10<<30/20 - 1}, nil, true},
		{"small disk", vfs.DiskUsage{TotalBytes: 100 << 20, AvailBytes: 64<<20 - 1}, nil, true},
		{"no answer", vfs.DiskUsage{}, errors.New("not supported"), false},
	} {
		raised := 0
		w := &diskWatch{
			usage:  func() (vfs.DiskUsage, error) { return tc.usage, tc.err },
			raised: func() bool { return raised > 0 },
			raise:  func(context.Context) error { raised++; return nil },
			log:    slog.New(slog.DiscardHandler),
		}
		w.check(t.Context())
		w.check(t.Context())
		if got := raised == 1; got != tc.want || raised > 1 {
			t.Errorf("%s: raised %d times, want %v", tc.name, raised, tc.want)
		}
	}
}
