// Package restore makes of a backup the state that the replicas of a new cluster begin with,
// before any of them has an entry in its log. All nodes do so with the same backup, and come to
// the same state.
package restore
