// Package cluster holds three nodes against what they must survive together: nodes that
// are killed, frozen and cut off, and the cases of CASES.md that need more than one node.
// It consists of tests.
package cluster
