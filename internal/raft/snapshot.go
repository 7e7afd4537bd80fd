package raft

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	sm "github.com/lni/dragonboat/v4/statemachine"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// A replica's snapshot is the magic, then its Pebble records in key order, each
// as the length of the key without the replica's prefix plus one, the key, the
// length of the value and the value (lengths as unsigned varints), then a zero
// and the CRC-32C of all that came before, big-endian.
const snapshotMagic = "latchkey replica 1\n"

// Checks for a stop and bounds of what is read come once in so many records.
const (
	snapshotStopEvery = 1024
	maxSnapshotRecord = 256 << 20
)

var (
	errBadSnapshot = errors.New("malformed snapshot")
	castagnoli     = crc32.MakeTable(crc32.Castagnoli)
)

// writeSnapshot writes all records below prefix.
func writeSnapshot(snap *pebble.Snapshot, prefix []byte, w io.Writer, stop <-chan struct{}) error {
	sum := crc32.New(castagnoli)
	out := bufio.NewWriterSize(io.MultiWriter(w, sum), 256<<10)
	if _, err := out.WriteString(snapshotMagic); err != nil {
		return err
	}
	if err := writeRecords(snap, prefix, out, stop); err != nil {
		return err
	}
	if err := out.WriteByte(0); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err := w.Write(binary.BigEndian.AppendUint32(nil, sum.Sum32()))
	return err
}

func writeRecords(snap *pebble.Snapshot, prefix []byte, out *bufio.Writer, stop <-chan struct{}) (err error) {
	it, err := snap.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: keys.PrefixEnd(prefix)})
	if err != nil {
		return fmt.Errorf("read state: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	var buf []byte
	n := 0
	for it.First(); it.Valid(); it.Next() {
		if n++; n%snapshotStopEvery == 0 && stopped(stop) {
			return sm.ErrSnapshotStopped
		}
		key := it.Key()[len(prefix):]
		value, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("read state: %w", err)
		}
		buf = binary.AppendUvarint(buf[:0], uint64(len(key))+1)
		buf = append(buf, key...)
		buf = binary.AppendUvarint(buf, uint64(len(value)))
		buf = append(buf, value...)
		if _, err := out.Write(buf); err != nil {
			return err
		}
	}
	return it.Error()
}

// readSnapshot replaces everything below prefix by what r holds, at once: the
// records go into a table file that Pebble takes in as it drops what was there.
func readSnapshot(db *pebble.DB, fs vfs.FS, dir string, prefix []byte, r io.Reader, stop <-chan struct{}) error {
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make snapshot directory: %w", err)
	}
	path := fs.PathJoin(dir, fmt.Sprintf("snapshot-%x.sst", prefix))
	if err := unpackSnapshot(db, fs, path, prefix, r, stop); err != nil {
		return errors.Join(err, fs.Remove(path))
	}
	span := pebble.KeyRange{Start: prefix, End: keys.PrefixEnd(prefix)}
	if _, err := db.IngestAndExcise(context.Background(), []string{path}, nil, nil, span); err != nil {
		return fmt.Errorf("take in snapshot: %w", err)
	}
	return nil
}

func unpackSnapshot(db *pebble.DB, fs vfs.FS, path string, prefix []byte, r io.Reader, stop <-chan struct{}) (err error) {
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("create snapshot file: %w", err)
	}
	w := sstable.NewWriter(objstorageprovider.NewFileWritable(f), sstable.WriterOptions{
		TableFormat: db.TableFormat(),
	})
	if err := copyRecords(w, prefix, r, stop); err != nil {
		return errors.Join(err, w.Close())
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("close snapshot file: %w", err)
	}
	return nil
}

// checkedReader feeds what is read into a checksum.
type checkedReader struct {
	*bufio.Reader
	sum hash.Hash32
}

// ReadByte reads one byte.
func (c checkedReader) ReadByte() (byte, error) {
	b, err := c.Reader.ReadByte()
	if err == nil {
		_, err = c.sum.Write([]byte{b})
	}
	return b, err
}

// full fills p.
func (c checkedReader) full(p []byte) error {
	if _, err := io.ReadFull(c.Reader, p); err != nil {
		return fmt.Errorf("%w: %w", errBadSnapshot, err)
	}
	_, err := c.sum.Write(p)
	return err
}

func copyRecords(w *sstable.Writer, prefix []byte, r io.Reader, stop <-chan struct{}) error {
	in := checkedReader{bufio.NewReaderSize(r, 256<<10), crc32.New(castagnoli)}
	magic := make([]byte, len(snapshotMagic))
	if err := in.full(magic); err != nil {
		return err
	}
	if !bytes.Equal(magic, []byte(snapshotMagic)) {
		return fmt.Errorf("%w: it begins with %q", errBadSnapshot, magic)
	}
	key := append([]byte(nil), prefix...)
	for n := 1; ; n++ {
		if n%snapshotStopEvery == 0 && stopped(stop) {
			return sm.ErrSnapshotStopped
		}
		keyLen, err := binary.ReadUvarint(in)
		if err != nil || keyLen > maxSnapshotRecord {
			return fmt.Errorf("%w: key length", errBadSnapshot)
		}
		if keyLen == 0 {
			break
		}
		key = append(key[:len(prefix)], make([]byte, keyLen-1)...)
		if err := in.full(key[len(prefix):]); err != nil {
			return err
		}
		valueLen, err := binary.ReadUvarint(in)
		if err != nil || valueLen > maxSnapshotRecord {
			return fmt.Errorf("%w: value length", errBadSnapshot)
		}
		value := make([]byte, valueLen)
		if err := in.full(value); err != nil {
			return err
		}
		if err := w.Set(key, value); err != nil {
			return fmt.Errorf("write snapshot file: %w", err)
		}
	}
	want := in.sum.Sum32()
	var tail [4]byte
	if _, err := io.ReadFull(in.Reader, tail[:]); err != nil {
		return fmt.Errorf("%w: %w", errBadSnapshot, err)
	}
	if got := binary.BigEndian.Uint32(tail[:]); got != want {
		return fmt.Errorf("%w: checksum %08x, %08x expected", errBadSnapshot, got, want)
	}
	return nil
}

func stopped(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}
