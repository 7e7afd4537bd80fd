package node

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A node stops writes while there is still room for the log: once the log can't
// be written, the node can only stop. The room kept is a twentieth of the disk,
// within bounds.
const (
	diskCheckInterval = 5 * time.Second
	minDiskReserve    = 64 << 20
	maxDiskReserve    = 1 << 30
)

// diskWatch raises the alarm that stops writes when the disk is nearly full. It
// never clears it: operators do, as after any NOSPACE alarm.
type diskWatch struct {
	// usage tells the size of the disk and what is free.
	usage func() (vfs.DiskUsage, error)
	// raised reports whether the alarm is on, raise turns it on.
	raised func() bool
	raise  func(context.Context) error
	log    *slog.Logger

	stop context.CancelFunc
	wg   sync.WaitGroup
}

func (w *diskWatch) start() {
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	w.wg.Go(func() {
		t := time.NewTicker(diskCheckInterval)
		defer t.Stop()
		for {
			w.check(ctx)
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
		}
	})
}

func (w *diskWatch) close() {
	w.stop()
	w.wg.Wait()
}

// check looks once. A file system that can't tell its size is never full.
func (w *diskWatch) check(ctx context.Context) {
	u, err := w.usage()
	if err != nil || u.AvailBytes >= diskReserve(u.TotalBytes) || w.raised() {
		return
	}
	w.log.Error("the disk is nearly full: writes stop; free space, then disarm the alarm",
		slog.Uint64("free_bytes", u.AvailBytes), slog.Uint64("size_bytes", u.TotalBytes))
	if err := w.raise(ctx); err != nil && ctx.Err() == nil {
		w.log.Error("the NOSPACE alarm can't be raised; it is tried again", slog.Any("error", err))
	}
}

func diskReserve(size uint64) uint64 {
	return min(max(size/20, minDiskReserve), maxDiskReserve)
}
