// Package peer carries bytes between the nodes of a cluster.
package peer
