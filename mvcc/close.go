package mvcc

import "io"

// closeAfter closes c and returns err, or else the error of closing.
func closeAfter(c io.Closer, err error) error {
	if cerr := c.Close(); err == nil {
		return cerr
	}
	return err
}
