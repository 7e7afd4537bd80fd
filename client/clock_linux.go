package client

import (
	"time"

	"golang.org/x/sys/unix"
)

// systemClock is CLOCK_BOOTTIME: time.Now stands still while a machine is suspended, and
// leases on the servers do not.
func systemClock() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return wallClock()
	}
	return time.Duration(t.Nano())
}
