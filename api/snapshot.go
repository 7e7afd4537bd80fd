package api

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/backup"
)

// snapshotChunk is the size in bytes of the pieces in which a backup is sent.
const snapshotChunk = 32 << 10

// Snapshot sends a backup of the keyspace in chunks, and last its SHA-256. Every
// message says how many bytes of the backup remain, so the backup is written to a
// file first.
func (s *maintenanceService) Snapshot(_ *pb.SnapshotRequest, stream pb.Maintenance_SnapshotServer) error {
	ctx := stream.Context()
	recheck, err := s.gate.required(ctx, needRoot)
	if err != nil {
		return err
	}
	defer since(s.metrics.snapshot, time.Now())
	f, err := os.CreateTemp(s.spool, "snapshot-*.tmp")
	if err != nil {
		return toStatus(fmt.Errorf("create snapshot file: %w", err))
	}
	// The name goes at once: the file goes with its last user, even by a kill.
	defer func() { _ = f.Close() }()
	if err := os.Remove(f.Name()); err != nil {
		return toStatus(fmt.Errorf("unlink snapshot file: %w", err))
	}
	size, err := s.spoolSnapshot(ctx, f)
	if err == nil {
		err = recheck()
	}
	if err == nil {
		err = sendSnapshot(f, size, stream)
	}
	if err != nil && ctx.Err() != nil {
		return endOf(ctx)
	}
	return toStatus(err)
}

// spoolSnapshot writes the backup to f, pads it and rewinds. It returns the padded
// size.
func (s *maintenanceService) spoolSnapshot(ctx context.Context, f *os.File) (int64, error) {
	buffered := bufio.NewWriterSize(f, snapshotChunk)
	if err := s.node.WriteSnapshot(ctx, buffered); err != nil {
		return 0, err
	}
	if err := buffered.Flush(); err != nil {
		return 0, fmt.Errorf("write snapshot file: %w", err)
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, fmt.Errorf("measure snapshot file: %w", err)
	}
	size = (size + backup.Align - 1) / backup.Align * backup.Align
	if err := f.Truncate(size); err != nil {
		return 0, fmt.Errorf("pad snapshot file: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, fmt.Errorf("rewind snapshot file: %w", err)
	}
	return size, nil
}

// sendSnapshot sends the size bytes of r and their checksum.
func sendSnapshot(r io.Reader, size int64, stream pb.Maintenance_SnapshotServer) error {
	hash := sha256.New()
	for remaining := size; remaining > 0; {
		// gRPC may keep what it was given, so each chunk has a buffer of its own.
		blob := make([]byte, min(remaining, snapshotChunk))
		if _, err := io.ReadFull(r, blob); err != nil {
			return fmt.Errorf("read snapshot file: %w", err)
		}
		hash.Write(blob)
		remaining -= int64(len(blob))
		err := stream.Send(&pb.SnapshotResponse{
			RemainingBytes: uint64(remaining),
			Blob:           blob,
			Version:        ClusterVersion,
		})
		if err != nil {
			return err
		}
	}
	return stream.Send(&pb.SnapshotResponse{Blob: hash.Sum(nil), Version: ClusterVersion})
}
