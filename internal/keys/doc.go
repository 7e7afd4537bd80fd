// Package keys knows the order of keys: spans of them, etcd's range_end rules,
// directories, and byte encodings that sort as the values they stand for.
//
// Keys are arbitrary bytes and sort bytewise. A Span is the only way the code
// speaks of "these keys": etcd's pair (key, range_end) with its two special
// forms is turned into one at the edge and never seen again.
//
//	key   range_end   span
//	"a"   ""          ["a", "a\x00")     one key
//	"a"   "\x00"      ["a", no bound)    every key from "a" on
//	"a"   "c"         ["a", "c")         the usual form
//	"c"   "a"         empty              not an error
//
// Encodings are for composing storage keys: AppendEscaped writes a key of any
// length so that what follows it can't disturb the order; the integers are
// fixed-width and sort ascending, or descending in the Desc forms.
package keys
