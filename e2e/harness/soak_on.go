//go:build soak

package harness

// Sized returns how large a test is: small in every run, full where the tests are
// built with the tag soak.
func Sized(_, full int) int { return full }
