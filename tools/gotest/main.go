// Gotest reads what "go test -json" writes and prints what "go test" alone would
// have printed. It fails when a test failed, when one was skipped, and when no
// package passed at all.
//
//	go test -json ./... | gotest
package main

import (
	"fmt"
	"os"
)

func main() {
	ok, err := report(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}
