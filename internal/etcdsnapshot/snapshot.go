package etcdsnapshot

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/latchkey-db/latchkey/internal/backup"
)

// lockTimeout is how long the database may be locked by another process: etcd locks its own for as
// long as it runs.
const lockTimeout = time.Second

// Snapshot is one whose pages and records have all been checked. Whoever opens it closes it.
type Snapshot struct {
	db *bbolt.DB
	contents
}

// Open opens the snapshot in a file. Without skipHash the SHA-256 has to be there and right, with
// it is not looked at: a copy of the database of an etcd has none. Its errors tell whoever has the file
// what is wrong with it.
func Open(path string, skipHash bool) (_ *Snapshot, err error) {
	if err := check(path, skipHash); err != nil {
		return nil, err
	}
	db, err := bbolt.Open(path, 0, &bbolt.Options{ReadOnly: true, Timeout: lockTimeout})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, errors.New("another process uses it: copy the database of an etcd when it has been stopped, or save a snapshot")
	}
	if err != nil {
		return nil, err
	}
	s := &Snapshot{db: db}
	if s.contents, err = readContents(db); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// Summary says what the snapshot holds.
func (s *Snapshot) Summary() backup.Summary { return s.summary }

// Close closes the file.
func (s *Snapshot) Close() error { return s.db.Close() }

// check checks the file and the pages of the database in it.
func check(path string, skipHash bool) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	// Pages are multiples of it.
	hashed := size%backup.Align == sha256.Size
	if hashed {
		size -= sha256.Size
	}
	if !skipHash {
		if !hashed {
			return fmt.Errorf("%w: it has no SHA-256 behind its pages; of a copy of the member/snap/db of an etcd, "+
				"made when it had been stopped, --skip-hash-check does not expect one", backup.ErrCut)
		}
		if err := checkHash(f, size); err != nil {
			return err
		}
	}
	return checkPages(f, size)
}

// checkHash compares size bytes with the SHA-256 behind them.
func checkHash(f io.Reader, size int64) error {
	sum, want := sha256.New(), make([]byte, sha256.Size)
	if _, err := io.CopyN(sum, f, size); err != nil {
		return err
	}
	if _, err := io.ReadFull(f, want); err != nil {
		return err
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return fmt.Errorf("%w: its SHA-256 is wrong", backup.ErrDamaged)
	}
	return nil
}
