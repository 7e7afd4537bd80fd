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
		var r rests
		for _, rest := range []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute, time.Minute} {
			if r.rests(1) {
				t.Fatal("a node is left alone longer than it should")
			}
			r.offered(1, false)
			if r.rests(2) {
				t.Error("another node is left alone")
			}
			time.Sleep(rest - time.Millisecond)
			if !r.rests(1) {
				t.Errorf("it is offered something again before %v", rest)
			}
			time.Sleep(time.Millisecond)
		}
		r.offered(1, false)
		r.offered(1, true)
		if r.rests(1) {
			t.Error("a node that took over is left alone")
		}
		r.offered(1, false)
		time.Sleep(firstRest)
		if r.rests(1) {
			t.Error("what was before a success counts")
		}
	})
}
