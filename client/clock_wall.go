package client

import "time"

var started = time.Now()

// wallClock is whichever is further, the monotonic clock or the time of day: the former may stand still
// while a machine is suspended. A time of day that is set forward ends what it should not; one that is set
// back changes nothing.
func wallClock() time.Duration {
	now := time.Now()
	return max(now.Sub(started), now.Round(0).Sub(started.Round(0)))
}
