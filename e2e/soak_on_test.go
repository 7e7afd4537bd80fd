//go:build soak

package e2e

// sized returns how large a test is: small in every run, full where the tests are
// built with the tag soak.
func sized(_, full int) int { return full }
