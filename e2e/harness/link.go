package harness

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Link is a connection to a server that can be cut.
type Link struct {
	// Addr is where clients connect to.
	Addr   string
	listen net.Listener
	to     string

	mu    sync.Mutex
	cut   bool
	conns []io.Closer
	wg    sync.WaitGroup
}

// NewLink opens a connection to an address; the test's end closes it.
func NewLink(tb testing.TB, to string) *Link {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	k := &Link{Addr: l.Addr().String(), listen: l, to: to}
	k.wg.Go(k.accept)
	tb.Cleanup(func() {
		closeAll(k.listen)
		k.SetCut(true)
		k.wg.Wait()
	})
	return k
}

func (k *Link) accept() {
	for {
		in, err := k.listen.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", k.to)
		if err != nil {
			closeAll(in)
			continue
		}
		k.mu.Lock()
		if k.cut {
			closeAll(in, out)
			k.mu.Unlock()
			continue
		}
		k.conns = append(k.conns, in, out)
		k.mu.Unlock()
		k.wg.Go(func() { pipe(in, out) })
		k.wg.Go(func() { pipe(out, in) })
	}
}

func pipe(to, from net.Conn) {
	_, _ = io.Copy(to, from) // either side may reset; the other one is told so
	closeAll(to, from)
}

// closeAll closes what the other side may have closed before.
func closeAll(all ...io.Closer) {
	for _, c := range all {
		_ = c.Close() // so that an error tells nothing
	}
}

// SetCut ends all connections and refuses new ones, or lets them through again.
func (k *Link) SetCut(cut bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut = cut
	if cut {
		closeAll(k.conns...)
		k.conns = nil
	}
}
