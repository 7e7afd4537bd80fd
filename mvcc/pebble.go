package mvcc

import (
	"errors"
	"io"

	"github.com/cockroachdb/pebble/v2"
)

func isNotFound(err error) bool { return errors.Is(err, pebble.ErrNotFound) }

// closeAfter closes c and returns err, or else the error of closing.
func closeAfter(c io.Closer, err error) error {
	if cerr := c.Close(); err == nil {
		return cerr
	}
	return err
}
