package raft

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/latchkey-db/latchkey/internal/invariant"
)

// A process whose log or state can't be written ends at once: nothing that it has not
// kept may be acknowledged, and after a failed fsync nobody knows what the file holds. The
// storage engines and dragonboat panic with the error; HostConfig.Fatal makes a line for
// operators of that.

// errDiskAdvice is what an operator can do about a disk.
const errDiskAdvice = "check the disk that holds the data directory and its free space, then start the node again"

// diskFailed says what could not be written.
func diskFailed(doing string, err error) error {
	return fmt.Errorf("%s: %w; %s", doing, err, errDiskAdvice)
}

// endOnPanic is deferred around what writes. It tells fatal of an error that a storage
// engine panics with, and lets other panics be.
func endOnPanic(fatal func(error), doing string) {
	endPanic(recover(), fatal, doing)
}

// endPanic tells fatal of the error in a panic's value, if there is one, and panics on.
func endPanic(v any, fatal func(error), doing string) {
	if v == nil {
		return
	}
	if err := storageError(v); err != nil && fatal != nil {
		fatal(diskFailed(doing, err))
	}
	panic(v) //nolint:forbidigo // the process must end
}

// storageError returns the error in a panic's value, nil for a fault of the code.
func storageError(v any) error {
	err, ok := v.(error)
	var fault runtime.Error
	var violated *invariant.ViolatedError
	if !ok || errors.As(err, &fault) || errors.As(err, &violated) {
		return nil
	}
	return err
}
