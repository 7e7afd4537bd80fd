package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestManyCallsSideBySide(t *testing.T) {
	n := start(t, nil)
	n.echo()
	var calls sync.WaitGroup
	for from := uint64(1); from <= 3; from++ {
		for to := uint64(1); to <= 3; to++ {
			for i := range 300 {
				if from == to {
					continue
				}
				calls.Go(func() {
					request := strings.Repeat("x", i*i)
					got, err := n.meshes[from].Call(t.Context(), to, []byte(request))
					if want := fmt.Sprintf("%d to %d: %s", from, to, request); err != nil || string(got) != want {
						t.Errorf("call of %d bytes: %.40q, %v", len(request), got, err)
					}
				})
			}
		}
	}
	calls.Wait()
}

// A call that breaks was carried out at most once, and never if it says so.
func TestBrokenStreamsRepeatNothing(t *testing.T) {
	n := start(t, nil)
	var mu sync.Mutex
	times := make(map[uint64]int)
	n.meshes[2].Handle(func(_ context.Context, _ uint64, request []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		times[binary.BigEndian.Uint64(request)]++
		return request
	})
	var next atomic.Uint64
	outcomes := make(map[uint64]error)
	done := make(chan struct{})
	var calls sync.WaitGroup
	for range 16 {
		calls.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				id := next.Add(1)
				_, err := n.meshes[1].Call(t.Context(), 2, binary.BigEndian.AppendUint64(nil, id))
				mu.Lock()
				outcomes[id] = err
				mu.Unlock()
				if errors.Is(err, ErrUnsent) {
					<-time.After(time.Millisecond)
				}
			}
		})
	}
	count := func(want error) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, err := range outcomes {
				if errors.Is(err, want) || want == nil && err == nil {
					return true
				}
			}
			return false
		}
	}
	for range 20 {
		until(t, "calls that are answered", count(nil))
		n.doors[2].cut()
		<-time.After(20 * time.Millisecond)
	}
	n.doors[2].shut(true)
	until(t, "calls that are not sent", count(ErrUnsent))
	n.doors[2].shut(false)
	before := next.Load()
	until(t, "calls that are answered again", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for id, err := range outcomes {
			if id > before && err == nil {
				return true
			}
		}
		return false
	})
	close(done)
	calls.Wait()
	n.meshes[2].Close()
	lost := 0
	for id, err := range outcomes {
		switch {
		case err == nil && times[id] == 1:
		case errors.Is(err, ErrUnsent) && times[id] == 0:
		case errors.Is(err, ErrLost) && times[id] <= 1:
			lost++
		default:
			t.Errorf("call %d: carried out %d times, %v", id, times[id], err)
		}
	}
	t.Logf("%d calls, %d of them lost", len(outcomes), lost)
	if lost == 0 {
		t.Error("no call was lost: the streams were not cut")
	}
}

// A node that stands still costs calls to others nothing, and is found out.
func TestStalledNodeBlocksNobody(t *testing.T) {
	n := start(t, func(c *Config) { c.Timeout, c.MaxQueued = time.Second, 1<<20 })
	n.echo()
	for to := uint64(2); to <= 3; to++ {
		if _, err := n.meshes[1].Call(t.Context(), to, []byte("hello")); err != nil {
			t.Fatal(err)
		}
	}
	thaw := n.doors[3].freeze()
	defer thaw()
	stalled := make(chan error, 64)
	for range cap(stalled) {
		go func() {
			_, err := n.meshes[1].Call(t.Context(), 3, make([]byte, 256<<10))
			stalled <- err
		}()
	}
	for range 100 {
		if _, err := n.meshes[1].Call(t.Context(), 2, []byte("hello")); err != nil {
			t.Fatal(err)
		}
	}
	lost := 0
	for range cap(stalled) {
		switch err := <-stalled; {
		case errors.Is(err, ErrLost):
			lost++
		case !errors.Is(err, ErrUnsent):
			t.Errorf("a call to the stalled node: %v", err)
		}
	}
	if lost == 0 {
		t.Error("no call to the stalled node was lost")
	}
	thaw()
	until(t, "the node that goes on", func() bool {
		_, err := n.meshes[1].Call(t.Context(), 3, []byte("hello"))
		return err == nil
	})
}

func TestCanceledCallsEndThere(t *testing.T) {
	n := start(t, nil)
	began, ended := make(chan struct{}), make(chan struct{})
	n.meshes[2].Handle(func(ctx context.Context, _ uint64, _ []byte) []byte {
		close(began)
		<-ctx.Done()
		close(ended)
		return nil
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("no longer wanted")
	go func() {
		<-began
		cancel(reason)
	}()
	if _, err := n.meshes[1].Call(ctx, 2, []byte("x")); !errors.Is(err, reason) {
		t.Errorf("the canceled call: %v", err)
	}
	<-ended
	if _, err := n.meshes[1].Call(ctx, 2, []byte("x")); !errors.Is(err, reason) {
		t.Errorf("a call canceled before: %v", err)
	}
}

// An answer that nobody waits for goes with the next one, or soon.
func TestUnhurriedAnswers(t *testing.T) {
	n := start(t, func(c *Config) {
		c.Unhurried = func(request, answer []byte) bool {
			return bytes.Equal(request, answer) && bytes.HasPrefix(request, []byte("later"))
		}
	})
	answered := make(chan string, 16)
	n.meshes[2].Handle(func(_ context.Context, _ uint64, request []byte) []byte { return request })
	var calls sync.WaitGroup
	call := func(request string) {
		calls.Go(func() {
			got, err := n.meshes[1].Call(t.Context(), 2, []byte(request))
			if err != nil {
				t.Error(err)
			}
			answered <- string(got)
		})
	}
	call("now") // once there is a connection
	<-answered
	kept := false
	for i := 0; i < 100 && !kept; i++ {
		began := time.Now()
		call(fmt.Sprint("later ", i))
		if got := <-answered; got != fmt.Sprint("later ", i) {
			t.Errorf("the answer is %q", got)
		}
		// One that is ready while another is being sent, or a ping answered, goes with that.
		kept = time.Since(began) >= maxUnhurried
	}
	if !kept {
		t.Error("all were sent at once")
	}
	for range 8 {
		call("later")
	}
	call("now")
	calls.Wait()
}

func TestCallsBeforeHandle(t *testing.T) {
	n := start(t, nil)
	if _, err := n.meshes[1].Call(t.Context(), 2, []byte("x")); !errors.Is(err, ErrUnsent) {
		t.Errorf("a call that nobody answers: %v", err)
	}
	if _, err := n.meshes[1].Call(t.Context(), 9, []byte("x")); !errors.Is(err, ErrUnsent) {
		t.Errorf("a call to an unknown node: %v", err)
	}
}

func TestFrameLimits(t *testing.T) {
	n := start(t, func(c *Config) { c.MaxFrame = 64 << 10 })
	n.meshes[2].Handle(func(_ context.Context, _ uint64, request []byte) []byte {
		return make([]byte, binary.BigEndian.Uint32(request))
	})
	call := func(request, answer int) error {
		b := make([]byte, request)
		binary.BigEndian.PutUint32(b, uint32(answer))
		got, err := n.meshes[1].Call(t.Context(), 2, b)
		if err == nil && len(got) != answer {
			t.Errorf("an answer of %d bytes has %d", answer, len(got))
		}
		return err
	}
	if err := call(65<<10, 0); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a request that no message holds: %v", err)
	}
	if err := call(63<<10, 63<<10); err != nil {
		t.Errorf("the largest request: %v", err)
	}
	if err := call(4, 65<<10); !errors.Is(err, ErrLost) {
		t.Errorf("an answer that no message holds: %v", err)
	}
	var calls sync.WaitGroup
	for range 50 {
		calls.Go(func() {
			if err := call(30<<10, 30<<10); err != nil {
				t.Errorf("one of many large calls: %v", err)
			}
		})
	}
	calls.Wait()
}

func TestCloseEndsCalls(t *testing.T) {
	n := start(t, nil)
	began := make(chan struct{})
	n.meshes[2].Handle(func(ctx context.Context, _ uint64, _ []byte) []byte {
		close(began)
		<-ctx.Done()
		return nil
	})
	failed := make(chan error)
	go func() {
		_, err := n.meshes[1].Call(t.Context(), 2, []byte("x"))
		failed <- err
	}()
	<-began
	n.meshes[1].Close()
	if err := <-failed; !errors.Is(err, ErrLost) {
		t.Errorf("a call of a node that is closed: %v", err)
	}
	if _, err := n.meshes[1].Call(t.Context(), 2, []byte("x")); !errors.Is(err, ErrUnsent) {
		t.Errorf("a call after the end: %v", err)
	}
}

func TestMalformedRecords(t *testing.T) {
	none := func(byte, uint64, []byte) error { return nil }
	for _, b := range [][]byte{{opCall}, {opCall, 1}, {opCall, 1, 5, 'x'}, {opAnswer, 0xff}, {opCall, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}} {
		if err := eachRecord(b, none); !errors.Is(err, errStream) {
			t.Errorf("%x was read: %v", b, err)
		}
	}
}
