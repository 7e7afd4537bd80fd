// Package invariant stops the process where a promise of the code to itself is
// broken. It is for faults that no input can cause: a caller that meets bad
// input returns an error instead.
package invariant

import "fmt"

// Violation is the value that Violated panics with, so that a recover can tell
// a broken invariant from any other panic.
type Violation struct {
	// Text says which invariant broke and with what values.
	Text string
}

// Error returns the text of the broken invariant.
func (v *Violation) Error() string { return "invariant violated: " + v.Text }

// Violated panics with a *Violation whose text is made from format and args.
func Violated(format string, args ...any) {
	panic(&Violation{Text: fmt.Sprintf(format, args...)})
}
