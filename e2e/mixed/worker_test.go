package mixed

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

// patience bounds a call that nothing holds up but faults.
const patience = 10 * time.Second

// of is how many permits each lock has where it serves as a semaphore.
const of = 3

// worker takes locks in one of the ways, as one party after the other.
type worker struct {
	e   *env
	way way
	rnd *rand.Rand
	// holds counts the times that it certainly had a lock.
	holds *atomic.Int64
}

// run works until ctx ends. What it has then it gives back, or not, as always.
func (w *worker) run(ctx context.Context) {
	for ctx.Err() == nil {
		nodes := slices.Clone(w.e.nodes)
		w.rnd.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		open, cancel := context.WithTimeout(ctx, patience)
		p, err := w.way.open(open, w.e, nodes)
		cancel()
		if err == nil {
			w.live(ctx, p)
		}
		_ = pause(ctx, 50*time.Millisecond) // the loop looks at ctx
	}
}

// live has a party take turns until it fails, dies, or ctx ends.
func (w *worker) live(ctx context.Context, p party) {
	asked := make(map[string]time.Time)
	var err error
	for ctx.Err() == nil && err == nil {
		err = w.turn(ctx, p, asked)
	}
	if errors.Is(err, errDied) {
		return
	}
	if err != nil && w.oneIn(4) {
		p.die()
		return
	}
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	_ = p.leave(leaving) // what could not be given back ends with its lease
}

// oneIn draws.
func (w *worker) oneIn(n int) bool { return w.rnd.IntN(n) == 0 }

// upTo draws a time.
func (w *worker) upTo(d time.Duration) time.Duration { return time.Duration(w.rnd.Int64N(int64(d))) }

// mode draws one that the way knows.
func (w *worker) mode() mode {
	switch n := w.rnd.IntN(10); {
	case !w.way.modes || n < 6:
		return mode{}
	case n < 8:
		return mode{shared: true}
	default:
		return mode{permits: 1 + w.rnd.IntN(2), of: of}
	}
}

// turn asks for a lock, has it for some time and gives it back. asked is when the party began to
// ask for what it has not given back since.
func (w *worker) turn(ctx context.Context, p party, asked map[string]time.Time) error {
	h := hold{lock: w.e.locks[w.rnd.IntN(len(w.e.locks))], who: w.way.name, mode: w.mode()}
	if _, ok := asked[h.lock]; !ok {
		asked[h.lock] = time.Now()
	}
	h.asked = asked[h.lock]
	waiting, cancel := context.WithTimeout(ctx, w.upTo(2*ttl))
	defer cancel()
	dead := func() bool { return false }
	if w.oneIn(40) {
		death := time.AfterFunc(w.upTo(time.Second/2), p.die)
		dead = func() bool { return !death.Stop() }
	}
	g, err := p.acquire(waiting, h.lock, h.mode)
	switch died := dead(); {
	case err == nil:
		h.token, h.told = g.token(), g.told()
		if died {
			w.ended(&h, g.sure())
			return errDied
		}
	case died:
		return errDied
	case errors.Is(err, errNotGranted):
		return nil
	default:
		return err
	}
	if err := w.have(context.WithoutCancel(ctx), p, g, &h); err != nil {
		return err
	}
	delete(asked, h.lock)
	return nil
}

// have has a lock for some time and gives it back, or does not.
func (w *worker) have(ctx context.Context, p party, g grant, h *hold) error {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	if time.Until(g.sure()) < ttl/2 {
		_ = g.renew(ctx) // otherwise little is known of for how long it has the lock
	}
	switch {
	case w.oneIn(40):
		p.die()
		w.ended(h, g.sure())
		return errDied
	case w.oneIn(60):
		p.still()
		for time.Until(g.sure()) > 0 {
			_ = pause(ctx, time.Until(g.sure())) // what fails is seen below
		}
		_ = pause(ctx, w.upTo(time.Second))
		w.ended(h, g.sure())
		return errors.Join(errGone, g.release(ctx)) // which is too late to be of any effect
	case w.oneIn(20):
		for range 1 + w.rnd.IntN(3) {
			_ = pause(ctx, w.upTo(ttl/3))
			_ = g.renew(ctx) // what fails is seen below
		}
	default:
		_ = pause(ctx, w.upTo(10*time.Millisecond))
	}
	w.ended(h, earlier(time.Now(), g.sure()))
	return g.release(ctx)
}

// ended records a hold.
func (w *worker) ended(h *hold, until time.Time) {
	h.until = until
	w.e.history.held(*h)
	if h.certain() {
		w.holds.Add(1)
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// left returns what a context leaves of time.
func left(ctx context.Context) time.Duration {
	until, _ := ctx.Deadline()
	return max(time.Until(until), time.Millisecond)
}

// pause waits for some time.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
