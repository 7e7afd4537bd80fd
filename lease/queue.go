package lease

import (
	"cmp"
	"container/heap"
	"time"
)

// queue orders timers by a moment of the clock's time, earliest first, ties by
// id. The moment a timer is filed under may lie before the one it waits for: a
// renewal moves only the timer's deadline, and the queue catches up when the
// timer comes to its front. So a renewal costs no heap operation.
type queue struct {
	timers []*timer
	kind   int // slotEnd or slotAge
}

// absent is the index of a timer that is not in the queue.
const absent = -1

// schedule files t under at, unless it is filed under an earlier moment.
func (q *queue) schedule(t *timer, at time.Duration) {
	switch {
	case t.pos[q.kind] == absent:
		t.at[q.kind] = at
		heap.Push((*timerHeap)(q), t)
	case at < t.at[q.kind]:
		q.refile(t, at)
	}
}

// refile files t, which is in the queue, under the moment at.
func (q *queue) refile(t *timer, at time.Duration) {
	t.at[q.kind] = at
	heap.Fix((*timerHeap)(q), int(t.pos[q.kind]))
}

// remove takes t out of the queue if it is there.
func (q *queue) remove(t *timer) {
	if pos := t.pos[q.kind]; pos != absent {
		heap.Remove((*timerHeap)(q), int(pos))
	}
}

// front returns the first timer if it is filed under now or earlier, else nil.
func (q *queue) front(now time.Duration) *timer {
	if len(q.timers) == 0 || q.timers[0].at[q.kind] > now {
		return nil
	}
	return q.timers[0]
}

// countUpTo returns the number of timers that are filed under now or earlier, limit at the
// most. It looks at no more than twice as many.
func (q *queue) countUpTo(now time.Duration, limit int) int {
	n := 0
	for next := []int{0}; len(next) > 0 && n < limit; {
		i := next[len(next)-1]
		next = next[:len(next)-1]
		if i < len(q.timers) && q.timers[i].at[q.kind] <= now {
			n++
			next = append(next, 2*i+1, 2*i+2)
		}
	}
	return n
}

// timerHeap is a queue as container/heap wants it.
type timerHeap queue

// Len returns the number of timers.
func (h *timerHeap) Len() int { return len(h.timers) }

// Less orders by moment, then id.
func (h *timerHeap) Less(i, j int) bool {
	a, b := h.timers[i], h.timers[j]
	return cmp.Or(cmp.Compare(a.at[h.kind], b.at[h.kind]), cmp.Compare(a.id, b.id)) < 0
}

// Swap exchanges two timers.
func (h *timerHeap) Swap(i, j int) {
	h.timers[i], h.timers[j] = h.timers[j], h.timers[i]
	h.timers[i].pos[h.kind] = int32(i)
	h.timers[j].pos[h.kind] = int32(j)
}

// Push adds a timer at the end.
func (h *timerHeap) Push(x any) {
	t, ok := x.(*timer)
	if !ok {
		return
	}
	t.pos[h.kind] = int32(len(h.timers))
	h.timers = append(h.timers, t)
}

// Pop takes the last timer off.
func (h *timerHeap) Pop() any {
	last := len(h.timers) - 1
	t := h.timers[last]
	h.timers[last] = nil
	h.timers = h.timers[:last]
	t.pos[h.kind] = absent
	return t
}
