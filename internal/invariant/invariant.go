// Package invariant stops the process where a promise of the code to itself is
// broken. It is for faults that no input can cause: a caller that meets bad
// input returns an error instead.
package invariant

import "fmt"

// ViolatedError is the value that Violated panics with, so that a recover can tell
// a broken invariant from any other panic.
type ViolatedError struct {
	// Text says which invariant broke and with what values.
	Text string
}

// Error returns the text of the broken invariant.
func (v *ViolatedError) Error() string { return "invariant violated: " + v.Text }

// Violated panics with a *ViolatedError whose text is made from format and args.
func Violated(format string, args ...any) {
	panic(&ViolatedError{Text: fmt.Sprintf(format, args...)})
}
