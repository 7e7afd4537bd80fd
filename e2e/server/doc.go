// Package server tries the server as a process: its flags, output and exit codes, what it
// keeps when it is killed, and what it takes of the machine. It consists of tests.
package server
