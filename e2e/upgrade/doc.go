// Package upgrade runs an earlier version of the server and replaces it by the present one,
// node by node, under load.
package upgrade
