package lease

import "slices"

// keySet holds the keys of a lease. Most leases have one key, which costs no
// more than the string itself. The zero value is an empty set.
type keySet struct {
	// one holds a key, or nothing.
	//
	// Invariant: keys are never empty, and one is not in more.
	one string
	// more holds the other keys; nil while there were none.
	more map[string]struct{}
}

func (s *keySet) len() int {
	n := len(s.more)
	if s.one != "" {
		n++
	}
	return n
}

// add puts a copy of key into the set.
func (s *keySet) add(key []byte) {
	if s.one == string(key) {
		return
	}
	if _, ok := s.more[string(key)]; ok {
		return
	}
	if s.one == "" {
		s.one = string(key)
		return
	}
	if s.more == nil {
		s.more = make(map[string]struct{})
	}
	s.more[string(key)] = struct{}{}
}

func (s *keySet) remove(key []byte) {
	if s.one == string(key) {
		s.one = ""
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
	names := make([]string, 0, s.len())
	if s.one != "" {
		names = append(names, s.one)
	}
	for k := range s.more {
		names = append(names, k)
	}
	slices.Sort(names)
	keys := make([][]byte, len(names))
	for i, k := range names {
		keys[i] = []byte(k)
	}
	return keys
}

// every reports whether ok holds for all keys.
func (s *keySet) every(ok func(key []byte) bool) bool {
	if s.one != "" && !ok([]byte(s.one)) {
		return false
	}
	for k := range s.more {
		if !ok([]byte(k)) {
			return false
		}
	}
	return true
}
