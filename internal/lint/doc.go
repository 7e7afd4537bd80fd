// Package lint holds the tests of the module's own rules: which package may
// import which, and the rules of the house that no linter knows. It has no code
// but its tests.
package lint
