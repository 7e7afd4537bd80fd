// Package fencing has databases refuse what a holder of a lock writes after it has lost
// it. It consists of tests.
package fencing
