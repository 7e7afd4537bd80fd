// Package command is what the binary does beside serving: it runs a program under a lock, and
// shows locks.
package command
