//go:build !soak

package sim

// sized returns how large a test is: small in every run, full where the tests are
// built with the tag soak.
func sized(small, _ int) int { return small }
