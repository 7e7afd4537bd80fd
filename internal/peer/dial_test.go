package peer

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"
)

// unheard returns an address whose system leaves packets that ask for a connection without an
// answer, as where the link is cut: nobody accepts, and the queue of those who wait is full.
func unheard(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: at.(*syscall.SockaddrInet4).Port}).String()
	for range 16 {
		conn, err := net.DialTimeout("tcp", address, 500*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { conn.Close() })
	}
	t.Fatal("the queue does not fill")
	return ""
}

// An attempt at a connection over a link that is cut ends before the other node counts as
// silent: a new one is heard as soon as the link is back, while the system sends the packet of
// an old one again at ever longer intervals.
func TestConnectionIsTriedAnew(t *testing.T) {
	c := Config{Timeout: 5 * time.Second}
	m := &Mesh{cfg: c}
	address := unheard(t)
	silent, cancel := context.WithTimeout(t.Context(), c.Timeout)
	defer cancel()
	if conn, err := m.dial(silent, "http://"+address); err == nil {
		conn.Close()
		t.Fatal("connected; the run shows nothing")
	}
	if silent.Err() != nil {
		t.Error("one attempt takes as long as a silent node is waited for")
	}
}
