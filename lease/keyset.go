package lease

import (
	"bytes"
	"slices"
)

// keySet holds the keys of a lease. Most leases have one key, which is kept as it was
// given. The zero value is an empty set.
type keySet struct {
	// one holds a key, or nothing. It is not changed.
	//
	// Invariant: keys are never empty, and one is not in more.
	one []byte
	// more holds the other keys; nil while there were none.
	more map[string]struct{}
}

func (s *keySet) len() int {
	n := len(s.more)
	if len(s.one) > 0 {
		n++
	}
	return n
}

// add puts key, which must not be changed any more, into the set.
func (s *keySet) add(key []byte) {
	if bytes.Equal(s.one, key) {
		return
	}
	if _, ok := s.more[string(key)]; ok {
		return
	}
	if len(s.one) == 0 {
		s.one = key
		return
	}
	if s.more == nil {
		s.more = make(map[string]struct{})
	}
	s.more[string(key)] = struct{}{}
}

func (s *keySet) remove(key []byte) {
	if bytes.Equal(s.one, key) {
		s.one = nil
		return
	}
	delete(s.more, string(key))
	if len(s.more) == 0 {
		s.more = nil
	}
}

// sorted returns copies of the keys in ascending order, nil for an empty set.
func (s *keySet) sorted() [][]byte {
	if s.len() == 0 {
		return nil
	}
	keys := make([][]byte, 0, s.len())
	if len(s.one) > 0 {
		keys = append(keys, bytes.Clone(s.one))
	}
	for k := range s.more {
		keys = append(keys, []byte(k))
	}
	slices.SortFunc(keys, bytes.Compare)
	return keys
}

// every reports whether ok, which must not change them, holds for all keys.
func (s *keySet) every(ok func(key []byte) bool) bool {
	if len(s.one) > 0 && !ok(s.one) {
		return false
	}
	for k := range s.more {
		if !ok([]byte(k)) {
			return false
		}
	}
	return true
}
