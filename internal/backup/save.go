package backup

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
)

// Save writes a backup of a revision with its padding and its SHA-256, as clients save what a
// server sends. records writes what is in it.
func Save(w io.Writer, rev int64, records func(*Writer) error) error {
	sum := sha256.New()
	size := &counter{}
	out := io.MultiWriter(sum, size, w)
	b := NewWriter(out, rev)
	if err := errors.Join(records(b), b.Err()); err != nil {
		return err
	}
	if err := b.Close(); err != nil {
		return err
	}
	if _, err := out.Write(bytes.Repeat([]byte{0}, (Align-size.bytes%Align)%Align)); err != nil {
		return err
	}
	_, err := w.Write(sum.Sum(nil))
	return err
}

// counter counts what is written.
type counter struct{ bytes int }

// Write counts.
func (c *counter) Write(p []byte) (int, error) {
	c.bytes += len(p)
	return len(p), nil
}
