package raft

import (
	"testing"
	"testing/synctest"
	"time"
)

// A write that takes too long shows for as long as it takes, and others don't hide it.
func TestStuckLogWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &LogWrites{}
		check := func(want bool) {
			t.Helper()
			if got := w.Stuck(2 * time.Second); got != want {
				t.Errorf("stuck: %v, want %v", got, want)
			}
		}
		check(false)
		end := w.begin()
		time.Sleep(2 * time.Second)
		check(false)
		w.begin()()
		time.Sleep(time.Millisecond)
		check(true)
		end()
		check(false)
	})
}
