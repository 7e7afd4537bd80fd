package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

// What a record in a message of calls is. Behind the byte comes the call's number;
// behind that, for opCall and opAnswer, the bytes.
const (
	opCall   byte = 1
	opCancel byte = 2
	opAnswer byte = 3
	// opRefuse says that a call was not carried out.
	opRefuse byte = 4
	// opFail says that a call was carried out, and that there is no answer.
	opFail byte = 5
	// opPing asks for an opPong of the same number.
	opPing byte = 6
	opPong byte = 7
)

// recordBytes bounds what a record has beside its bytes.
const recordBytes = 1 + 2*binary.MaxVarintLen64

// outcome is what becomes of a call.
type outcome struct {
	answer []byte
	err    error
}

// call is a call to another node.
type call struct {
	// number tells the calls of a link apart; 0 until the call is handed to a stream.
	number  uint64
	request []byte
	// done has room for the outcome.
	done chan outcome
}

// link is the way to another node. Its goroutine keeps a stream of calls up, as well as
// it can.
type link struct {
	m    *Mesh
	node uint64
	// ctx ends with the mesh, or when the node is forgotten.
	ctx    context.Context //nolint:containedctx // lives as long as the link
	cancel context.CancelFunc
	report reporter
	// work wakes the sender.
	work chan struct{}

	mu sync.Mutex
	// The fields below are protected by mu.

	// failing says that the last attempt to reach the node failed: calls fail at once.
	failing bool
	// connected is when the stream came up that there is now; zero without one.
	connected time.Time
	// queue holds the calls that wait to be sent, and queued their bytes.
	queue  []*call
	queued int
	// sent are the calls handed to the stream that is up, by number.
	sent map[uint64]*call
	// canceled are numbers of calls that nobody waits for any more.
	canceled []uint64
	number   uint64
	// pinged is when the last ping was handed to the stream that is up; zero where its
	// answer has come. pingDue says that one is to be sent.
	pinged  time.Time
	pingDue bool
}

func newLink(m *Mesh, node uint64) *link {
	l := &link{m: m, node: node, report: reporter{m: m, node: node}, work: make(chan struct{}, 1), sent: make(map[uint64]*call)}
	l.ctx, l.cancel = context.WithCancel(m.ctx)
	return l
}

// enqueue adds a call to those that wait to be sent.
func (l *link) enqueue(request []byte) (*call, error) {
	if len(request)+recordBytes > l.m.cfg.MaxFrame {
		return nil, fmt.Errorf("%w: %d bytes", ErrTooLarge, len(request))
	}
	c := &call{request: request, done: make(chan outcome, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failing || l.queued > 0 && l.queued+len(request) > l.m.cfg.MaxQueued {
		return nil, ErrUnsent
	}
	l.queue = append(l.queue, c)
	l.queued += len(request)
	l.wake()
	return c, nil
}

// wake makes the sender look again.
func (l *link) wake() {
	select {
	case l.work <- struct{}{}:
	default:
	}
}

// abandon forgets a call that nobody waits for any more.
func (l *link) abandon(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := slices.Index(l.queue, c); at >= 0 {
		l.queue = slices.Delete(l.queue, at, at+1)
		l.queued -= len(c.request)
		return
	}
	if l.sent[c.number] == c {
		delete(l.sent, c.number)
		l.canceled = append(l.canceled, c.number)
		l.wake()
	}
}

// run keeps a stream up until the mesh is closed, or the node is forgotten.
func (l *link) run() {
	defer l.fail()
	defer l.cancel()
	wait, reached := firstPause, false
	for {
		ch, err := l.m.open(l.ctx, greeting{To: l.node, Purpose: carriesCalls})
		if err == nil {
			wait, reached = firstPause, true
			l.report.over()
			l.up()
			err = l.converse(ch)
			l.lose()
		} else {
			l.fail()
			if reached && errors.Is(err, errNoListener) {
				reached = false
				l.gone()
			}
		}
		l.report.report(err)
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-l.ctx.Done():
			t.Stop()
			return
		}
		wait = min(2*wait, longestPause)
	}
}

// gone tells that the node has no process any more.
func (l *link) gone() {
	if l.m.cfg.Gone != nil {
		l.m.cfg.Gone(l.node)
	}
}

// up says that the node has been reached.
func (l *link) up() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failing, l.connected = false, time.Now()
}

// reachedFor returns how long there has been a stream, and false where there is none.
func (l *link) reachedFor() (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.connected), !l.connected.IsZero()
}

// fail ends the calls that wait, and makes others fail until the node is reached.
func (l *link) fail() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failing = true
	for _, c := range l.queue {
		c.done <- outcome{err: ErrUnsent}
	}
	l.queue, l.queued = nil, 0
}

// lose ends the calls that were handed to a stream that is no more.
func (l *link) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.sent {
		c.done <- outcome{err: ErrLost}
	}
	clear(l.sent)
	l.canceled, l.connected = nil, time.Time{}
	l.pinged, l.pingDue = time.Time{}, false
}

// converse sends calls and takes answers until the stream breaks.
func (l *link) converse(ch *channel) error {
	var sending sync.WaitGroup
	sending.Go(func() {
		pings := time.NewTicker(pingInterval)
		defer pings.Stop()
		l.ping()
		for {
			for b := l.batch(); b != nil; b = l.batch() {
				if err := ch.send(b); err != nil {
					ch.cancel(err)
					return
				}
			}
			select {
			case <-l.work:
				runtime.Gosched() // what else calls now goes in one message
			case <-pings.C:
				l.ping()
			case <-ch.ctx.Done():
				return
			}
		}
	})
	defer sending.Wait()
	defer ch.close()
	for {
		b, err := ch.receive()
		if err == nil {
			err = l.take(b)
		}
		if err != nil {
			return fmt.Errorf("calls: %w", err)
		}
	}
}

// batch returns the next message, nil if nothing waits. From here on its calls may have
// been carried out.
func (l *link) batch() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b []byte
	for _, n := range l.canceled {
		b = binary.AppendUvarint(append(b, opCancel), n)
	}
	l.canceled = l.canceled[:0]
	if l.pingDue {
		b = append(b, opPing, 0)
		l.pinged, l.pingDue = time.Now(), false
	}
	taken := 0
	for _, c := range l.queue {
		if len(b) > 0 && len(b)+len(c.request)+recordBytes > min(batchBytes, l.m.cfg.MaxFrame) {
			break
		}
		taken++
		l.number++
		c.number = l.number
		l.sent[c.number] = c
		l.queued -= len(c.request)
		b = appendRecord(b, opCall, c.number, c.request)
		c.request = nil
	}
	clear(l.queue[:taken])
	l.queue = l.queue[taken:]
	return b
}

// ping has a ping sent, unless the last one is still unanswered.
func (l *link) ping() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pingDue = l.pinged.IsZero()
}

// pong tells how long the answer to a ping took.
func (l *link) pong() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.pinged.IsZero() {
		l.m.cfg.Traffic(l.node).RoundTrip(time.Since(l.pinged))
	}
	l.pinged = time.Time{}
}

// take hands the answers in a message to those who wait for them.
func (l *link) take(message []byte) error {
	return eachRecord(message, func(op byte, number uint64, body []byte) error {
		var o outcome
		switch op {
		case opAnswer:
			o.answer = body
		case opRefuse:
			o.err = ErrUnsent
		case opPong:
			l.pong()
			return nil
		case opFail:
			o.err = fmt.Errorf("%w: its answer is too large", ErrLost)
		default:
			return errStream
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if c := l.sent[number]; c != nil {
			delete(l.sent, number)
			c.done <- o
		}
		return nil
	})
}

func appendRecord(b []byte, op byte, number uint64, body []byte) []byte {
	b = binary.AppendUvarint(append(b, op), number)
	if op != opCall && op != opAnswer {
		return b
	}
	return append(binary.AppendUvarint(b, uint64(len(body))), body...)
}

// eachRecord takes a message of calls apart. The bytes alias it.
func eachRecord(message []byte, fn func(op byte, number uint64, body []byte) error) error {
	for len(message) > 0 {
		op := message[0]
		number, n := binary.Uvarint(message[1:])
		if n <= 0 {
			return errStream
		}
		message = message[1+n:]
		var body []byte
		if op == opCall || op == opAnswer {
			size, n := binary.Uvarint(message)
			if n <= 0 || size > uint64(len(message)-n) {
				return errStream
			}
			body = message[n : n+int(size) : n+int(size)]
			message = message[n+int(size):]
		}
		if err := fn(op, number, body); err != nil {
			return err
		}
	}
	return nil
}
