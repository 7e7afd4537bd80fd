package peer

import (
	"net"
	"testing"
)

// pretended is a connection from an address that says whether it was closed.
type pretended struct {
	net.Conn

	from   net.TCPAddr
	closed bool
}

// RemoteAddr returns the address.
func (p *pretended) RemoteAddr() net.Addr { return &p.from }

// Close notes that it was closed.
func (p *pretended) Close() error {
	p.closed = true
	return nil
}

func from(host byte, port int) *pretended {
	return &pretended{from: net.TCPAddr{IP: net.IPv4(10, 0, 0, host), Port: port}}
}

// A host that opens connections without end keeps no other out.
func TestCrowdClosesItsOwn(t *testing.T) {
	u := newUnproved()
	node := from(1, 1)
	u.add(node)
	var crowd []*pretended
	for i := range 2 * maxUnproved {
		crowd = append(crowd, from(2, 1+i))
		u.add(crowd[i])
	}
	if node.closed {
		t.Error("the connection of another host was closed")
	}
	for i, c := range crowd {
		if want := i < len(crowd)-(maxUnproved-1); c.closed != want {
			t.Errorf("connection %d of the crowd: closed %v, want %v", i, c.closed, want)
		}
	}
}

// What comes while a mesh closes holds nothing up.
func TestNoHandshakeBeginsAfterTheEnd(t *testing.T) {
	u := newUnproved()
	u.closeAll()
	late := from(1, 1)
	u.add(late)
	if !late.closed || u.order.Len() != 0 {
		t.Error("a handshake began after the end")
	}
}
