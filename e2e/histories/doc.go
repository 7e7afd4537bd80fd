// Package histories checks what concurrent clients of a server were answered, while it is
// killed and started again: some order explains it all. It consists of tests.
package histories
