package command

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/latchkey-db/latchkey/internal/backup"
	"github.com/latchkey-db/latchkey/internal/etcdsnapshot"
)

// source is a backup, of Latchkey or of etcd, that has been checked.
type source interface {
	Summary() backup.Summary
	// Save writes it as a backup of Latchkey, the same one each time.
	Save(w io.Writer) error
	Close() error
}

// openBackup opens and checks the backup in a file, which says itself of which kind it is.
func openBackup(path string, skipHash bool) (s source, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if etcdsnapshot.Is(f) {
		if err = f.Close(); err == nil {
			s, err = etcdsnapshot.Open(path, skipHash)
		}
	} else if s, err = openOwn(f); err != nil {
		err = errors.Join(err, f.Close())
	}
	switch {
	case errors.Is(err, backup.ErrCut), errors.Is(err, backup.ErrDamaged):
		return nil, fmt.Errorf("%s: %w; take another copy of it, or save it again", path, err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// own is a backup of Latchkey.
type own struct {
	file    *os.File
	summary backup.Summary
}

func openOwn(f *os.File) (*own, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	summary, err := backup.Read(f, info.Size(), backup.Contents{})
	return &own{f, summary}, err
}

// Summary says what the backup holds.
func (o *own) Summary() backup.Summary { return o.summary }

// Save copies the file.
func (o *own) Save(w io.Writer) error {
	_, err := io.Copy(w, io.NewSectionReader(o.file, 0, o.summary.Size))
	return err
}

// Close closes the file.
func (o *own) Close() error { return o.file.Close() }
