package mvcc

import (
	"bytes"

	"github.com/cockroachdb/pebble/v2"
)

// maxSteps is how many entries a forward walks over before it seeks. A step to the
// next entry costs a tenth of a seek.
const maxSteps = 8

// forward moves an iterator through storage keys in ascending order. The next key
// that is asked for is mostly near, with a few old versions before it: it is
// walked to, as long as that succeeds.
type forward struct {
	*pebble.Iterator
	// steps is how far to walk before the next seek: less after walks that did not
	// arrive.
	steps int
}

// newForward returns a forward on iter, which stands nowhere.
func newForward(iter *pebble.Iterator) forward { return forward{Iterator: iter, steps: maxSteps} }

// to moves to the first entry from target on, which is not below where it stands.
// It returns false at the end and after an error.
func (f *forward) to(target []byte) bool {
	if !f.Valid() {
		return f.SeekGE(target)
	}
	for n := 0; ; n++ {
		if bytes.Compare(f.Key(), target) >= 0 {
			f.steps = maxSteps
			return true
		}
		if n == f.steps {
			f.steps = max(1, f.steps/2)
			return f.SeekGE(target)
		}
		if !f.Next() {
			return false
		}
	}
}
