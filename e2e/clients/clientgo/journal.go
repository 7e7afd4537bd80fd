package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// event is something that happened to a candidate.
type event struct {
	// By is the candidate's name.
	By string `json:"by"`
	// Kind is "wrote" for a record with the candidate as its holder, "released"
	// for one without a holder, and "started", "yielding" and "stopped" for a lead.
	Kind string `json:"kind"`
	// At is when it happened, or a write was asked for, and Done when the write was
	// answered: nanoseconds of the host's monotonic clock.
	At   int64 `json:"at"`
	Done int64 `json:"done,omitempty"`
	// Rev is the revision of a write.
	Rev int64 `json:"rev,omitempty"`
}

// journal writes events as lines of JSON.
type journal struct {
	mu  sync.Mutex
	out io.Writer
	err error
}

func (j *journal) note(e event) {
	line, err := json.Marshal(e)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err == nil {
		_, err = j.out.Write(append(line, '\n'))
	}
	j.err = errors.Join(j.err, err)
}

// close returns what kept events from being written.
func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		return fmt.Errorf("write events: %w", j.err)
	}
	return nil
}

// monotonic reads the clock that all processes of the host share and nobody sets.
func monotonic() int64 {
	var t unix.Timespec
	// A clock that every Linux has and an address that is good: it can't fail.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}
