package leadership

import (
	"testing"
	"testing/synctest"
	"time"
)

// A node that does not take over is left alone, for longer each time, and not any more once
// it has.
func TestFailedOffersAreNotRepeatedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b backoff
		for _, pause := range []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute, time.Minute} {
			if b.active(1) {
				t.Fatal("a node is left alone longer than it should")
			}
			b.offered(1, false)
			if b.active(2) {
				t.Error("another node is left alone")
			}
			time.Sleep(pause - time.Millisecond)
			if !b.active(1) {
				t.Errorf("it is offered something again before %v", pause)
			}
			time.Sleep(time.Millisecond)
		}
		b.offered(1, false)
		b.offered(1, true)
		if b.active(1) {
			t.Error("a node that took over is left alone")
		}
		b.offered(1, false)
		time.Sleep(firstBackoff)
		if b.active(1) {
			t.Error("what was before a success counts")
		}
	})
}
