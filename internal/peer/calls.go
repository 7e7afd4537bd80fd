package peer

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// callServer serves the calls of one node.
type callServer struct {
	m    *Mesh
	from uint64
	s    *inbound
	ctx  context.Context //nolint:containedctx // lives as long as the stream
	// cancel ends the stream.
	cancel context.CancelFunc
	// wg counts the goroutines of calls.
	wg sync.WaitGroup

	mu sync.Mutex
	// The fields below are protected by mu.

	// running are the calls without an answer, and held the bytes of their requests.
	running map[uint64]context.CancelFunc
	held    int
	// idle are the workers that wait for a call, the last that came to wait last.
	idle []chan *task
	// answers are those that wait to be sent, and sending says that somebody sends them. later sends them at the
	// latest where none is in a hurry.
	answers []answer
	sending bool
	later   *time.Timer
	over    bool
}

// answer is what becomes of one call.
type answer struct {
	number uint64
	op     byte
	body   []byte
	// unhurried says that nobody waits for it.
	unhurried bool
}

// serveCalls serves a stream of calls.
func (m *Mesh) serveCalls(ctx context.Context, g *greeting, s *inbound) error {
	ctx, cancel := context.WithCancel(ctx)
	c := &callServer{m: m, from: g.Node, s: s, ctx: ctx, cancel: cancel, running: make(map[uint64]context.CancelFunc)}
	defer c.wg.Wait()
	defer func() { _ = s.conn.Close() }() // ends what waits to be sent
	defer c.end()
	defer cancel()
	return s.receive(ctx, func(b []byte) error { return eachRecord(b, c.record) })
}

// end keeps calls that are read from now on from being carried out.
func (c *callServer) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.later != nil {
		c.later.Stop()
	}
}

// record carries one record out.
func (c *callServer) record(op byte, number uint64, body []byte) error {
	switch op {
	case opCancel:
		c.mu.Lock()
		defer c.mu.Unlock()
		if cancel := c.running[number]; cancel != nil {
			cancel()
		}
		return nil
	case opPing:
		c.answer(answer{number: number, op: opPong}, 0)
		return nil
	case opCall:
		return c.call(number, body)
	}
	return errStream
}

// call carries a call out, or refuses it.
func (c *callServer) call(number uint64, body []byte) error {
	c.m.mu.Lock()
	handler := c.m.handler
	c.m.mu.Unlock()
	c.mu.Lock()
	refused := handler == nil || len(c.running) >= maxRunning || c.held > 0 && c.held+len(body) > maxHeld
	switch {
	case c.running[number] != nil:
		c.mu.Unlock()
		return errStream
	case c.over:
		c.mu.Unlock()
		return errClosed
	case refused:
		c.mu.Unlock()
		c.answer(answer{number: number, op: opRefuse}, 0)
		return nil
	}
	defer c.mu.Unlock()
	ctx, cancel := context.WithCancel(c.ctx)
	c.running[number] = cancel
	c.held += len(body)
	t := &task{number: number, run: func() []byte {
		defer cancel()
		return handler(ctx, c.from, body)
	}, request: body}
	if last := len(c.idle) - 1; last >= 0 {
		c.idle[last] <- t
		c.idle = c.idle[:last]
	} else {
		c.wg.Go(func() { c.work(t) })
	}
	return nil
}

// task is a call to carry out.
type task struct {
	number  uint64
	request []byte
	run     func() (answer []byte)
}

// maxIdle bounds the workers that wait for a call.
const maxIdle = 16

// work carries out a call, and then others that come. The stack of a new goroutine has to grow for most calls, which
// takes longer than the call.
func (c *callServer) work(t *task) {
	next := make(chan *task, 1)
	for {
		c.carryOut(t)
		c.mu.Lock()
		if len(c.idle) == maxIdle {
			c.mu.Unlock()
			return
		}
		c.idle = append(c.idle, next)
		c.mu.Unlock()
		select {
		case t = <-next:
		case <-c.ctx.Done():
			return
		}
	}
}

// carryOut carries out a call and answers it.
func (c *callServer) carryOut(t *task) {
	a := answer{number: t.number, op: opAnswer, body: t.run()}
	if len(a.body)+recordBytes > c.m.cfg.MaxFrame {
		a.op, a.body = opFail, nil
	}
	a.unhurried = a.op == opAnswer && c.m.cfg.Unhurried != nil && c.m.cfg.Unhurried(t.request, a.body)
	c.answer(a, len(t.request))
}

// answer sends an answer to a call whose request had held bytes, or leaves that to who is
// sending others.
func (c *callServer) answer(a answer, held int) {
	c.mu.Lock()
	if a.op == opAnswer || a.op == opFail {
		delete(c.running, a.number)
		c.held -= held
	}
	c.answers = append(c.answers, a)
	if a.unhurried {
		c.sendLaterLocked()
	}
	c.mu.Unlock()
	if !a.unhurried {
		c.send()
	}
}

// sendLaterLocked has what waits be sent when it has waited for long, unless it goes with others before. mu must be
// held.
func (c *callServer) sendLaterLocked() {
	switch {
	case c.over || len(c.answers) != 1:
	case c.later == nil:
		c.later = time.AfterFunc(maxUnhurried, c.send)
	default:
		c.later.Reset(maxUnhurried)
	}
}

// send sends what waits, unless somebody does. It ends the stream where nothing can be sent.
func (c *callServer) send() {
	c.mu.Lock()
	sending := c.sending || c.over
	c.sending = c.sending || !sending
	c.mu.Unlock()
	if sending {
		return
	}
	runtime.Gosched() // what else is answered now goes in one message
	for b := c.batch(); b != nil; b = c.batch() {
		if c.s.send(b) != nil {
			c.cancel()
			return
		}
	}
}

// batch returns the next message of answers. If there is none it returns nil, and nobody is sending
// any more.
func (c *callServer) batch() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sending = len(c.answers) > 0
	var b []byte
	taken := 0
	for _, a := range c.answers {
		if len(b) > 0 && len(b)+len(a.body)+recordBytes > min(batchBytes, c.m.cfg.MaxFrame) {
			break
		}
		taken++
		b = appendRecord(b, a.op, a.number, a.body)
	}
	clear(c.answers[:taken])
	c.answers = c.answers[taken:]
	return b
}
