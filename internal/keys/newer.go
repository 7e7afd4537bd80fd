package keys

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNewer is returned for a part of the log or of a state that this version does not know,
// and must not leave out: its replica would become another than those of newer nodes.
var ErrNewer = errors.New("written by a newer version of Latchkey: upgrade this node")

// Iterator is what CheckTags needs of an iterator over stored records.
type Iterator interface {
	First() bool
	SeekGE(key []byte) bool
	Key() []byte
	Error() error
}

// CheckTags returns ErrNewer if there is a record below prefix, which it covers, whose key goes on with a
// byte that is none of known.
func CheckTags(it Iterator, prefix []byte, known string) error {
	for ok := it.First(); ok; {
		key := it.Key()
		if len(key) == len(prefix) || strings.IndexByte(known, key[len(prefix)]) < 0 {
			return fmt.Errorf("record %q: %w", key[len(prefix):], ErrNewer)
		}
		next := append(append([]byte(nil), prefix...), key[len(prefix)]+1)
		if next[len(prefix)] == 0 {
			break
		}
		ok = it.SeekGE(next)
	}
	return it.Error()
}
