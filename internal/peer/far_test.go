package peer

import (
	"net"
	"sync"
	"testing"
	"time"
)

// relay listens for a door and passes on what comes, late by a time in each direction. It
// returns the address.
func relay(t *testing.T, to net.Addr, late time.Duration) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn // protected by mu
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			here, err := l.Accept()
			if err != nil {
				return
			}
			time.Sleep(2 * late) // for the connection
			there, err := net.Dial(to.Network(), to.String())
			if err != nil {
				here.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, here, there)
			mu.Unlock()
			wg.Go(func() { passLate(here, there, late) })
			wg.Go(func() { passLate(there, here, late) })
		}
	})
	return l.Addr().String()
}

// passLate copies from one connection to the other until one ends, and then closes both.
func passLate(from, to net.Conn, late time.Duration) {
	type parcel struct {
		data []byte
		due  time.Time
	}
	parcels := make(chan parcel, 1024)
	go func() {
		defer close(parcels)
		for {
			b := make([]byte, 64<<10)
			n, err := from.Read(b)
			if n > 0 {
				parcels <- parcel{b[:n], time.Now().Add(late)}
			}
			if err != nil {
				return
			}
		}
	}()
	defer from.Close()
	defer to.Close()
	for p := range parcels {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.data); err != nil {
			break
		}
	}
	from.Close()
	for range parcels { // until the reader ends
		continue
	}
}

// Nodes meet where a message and its answer take half of the timeout, though a handshake is
// several of both.
func TestHandshakeFromAfar(t *testing.T) {
	const timeout = time.Second
	var address string
	n := start(t, func(c *Config) {
		c.Timeout = timeout
		c.URLs = func(uint64) []string { return []string{"http://" + address} }
	})
	n.echo()
	address = relay(t, n.doors[2].Addr(), timeout/4)
	began := time.Now()
	for time.Since(began) < 20*time.Second {
		answer, err := n.meshes[1].Call(t.Context(), 2, []byte("hello"))
		if err == nil {
			if string(answer) != "1 to 2: hello" {
				t.Errorf("answered %q", answer)
			}
			return
		}
		time.Sleep(timeout / 4)
	}
	t.Error("the nodes never met")
}
