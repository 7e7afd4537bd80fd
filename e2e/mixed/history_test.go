package mixed

import (
	"fmt"
	"sync"
	"time"
)

// mode is how a lock is asked for: permits of a semaphore that has "of", shared, or else
// exclusively.
type mode struct {
	shared      bool
	permits, of int
}

func (m mode) exclusive() bool { return !m.shared && m.of == 0 }

// beside reports whether holders of two modes may have a lock together, if there are permits.
func (m mode) beside(o mode) bool { return m.shared && o.shared || m.of > 0 && m.of == o.of }

// hold is one time that a worker was told that it has a lock.
type hold struct {
	lock, who string
	mode      mode
	token     int64
	// asked is when the worker began to ask, told when it was told. until is the moment up to
	// which it certainly had the lock: it began to give it up then, or its lease may have
	// ended. It lies before told where that was so already.
	asked, told, until time.Time
}

func (h *hold) String() string {
	return fmt.Sprintf("%s as %+v with token %d, asked %s, told %s, until %s",
		h.who, h.mode, h.token, clock(h.asked), clock(h.told), clock(h.until))
}

func clock(t time.Time) string { return t.Format("05.000000") }

// certain reports whether the worker had the lock when it was told.
func (h *hold) certain() bool { return h.until.After(h.told) }

// look is what a linearizable read between two moments saw of a queue: the create revisions
// of its places, in order.
type look struct {
	lock      string
	sent, got time.Time
	places    []int64
}

// history is what workers were told. Its methods may run side by side.
type history struct {
	mu sync.Mutex
	// holds and looks are what was seen, broken what a worker itself found to be wrong.
	// Protected by mu.
	holds  []hold
	looks  []look
	broken []string
}

func (h *history) held(one hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holds = append(h.holds, one)
}

func (h *history) saw(one look) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looks = append(h.looks, one)
}

func (h *history) wrong(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.broken = append(h.broken, fmt.Sprintf(format, args...))
}
