package peer

import (
	"container/list"
	"net"
	"sync"
	"time"
)

// maxUnproved bounds the connections that have not shaken hands yet.
const maxUnproved = 128

// unproved holds the connections of those who have not shown yet that they know the
// cluster's secret. Where there are too many the oldest of the host that has most is closed:
// nodes are quick, and who holds connections for nothing, or opens many, keeps nobody out who
// comes from elsewhere.
type unproved struct {
	mu sync.Mutex
	// order holds them, oldest first, and at where each is; protected by mu.
	order *list.List
	at    map[net.Conn]*list.Element
	// closed says that no more are let in; protected by mu.
	closed bool
}

func newUnproved() *unproved {
	return &unproved{order: list.New(), at: make(map[net.Conn]*list.Element)}
}

// add takes a new connection in.
func (u *unproved) add(c net.Conn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		_ = c.Close() // whoever serves finds out
		return
	}
	u.at[c] = u.order.PushBack(c)
	if u.order.Len() > maxUnproved {
		u.closeLocked(u.crowdLocked())
	}
}

// crowdLocked returns the oldest connection of the host that has most. u.mu must be held.
func (u *unproved) crowdLocked() (oldest *list.Element) {
	count := make(map[string]int)
	for c := range u.at {
		count[hostOf(c)]++
	}
	most := 0
	for e := u.order.Front(); e != nil; e = e.Next() {
		if c, ok := e.Value.(net.Conn); ok && count[hostOf(c)] > most {
			oldest, most = e, count[hostOf(c)]
		}
	}
	return oldest
}

// hostOf returns where a connection comes from, "" where that is not known.
func hostOf(c net.Conn) string {
	if a := c.RemoteAddr(); a != nil {
		if host, _, err := net.SplitHostPort(a.String()); err == nil {
			return host
		}
	}
	return ""
}

// done forgets a connection whose handshake is over, or that of TLS on it.
func (u *unproved) done(c net.Conn) {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = t.NetConn()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if e := u.at[c]; e != nil {
		u.order.Remove(e)
		delete(u.at, c)
	}
}

// closeAll ends all handshakes, and those that begin from now on.
func (u *unproved) closeAll() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	for u.order.Len() > 0 {
		u.closeLocked(u.order.Front())
	}
}

// closeLocked closes a connection. u.mu must be held.
func (u *unproved) closeLocked(e *list.Element) {
	c, _ := u.order.Remove(e).(net.Conn)
	delete(u.at, c)
	_ = c.Close()
}

// bounded is a listener whose connections have a while for all that comes before they are
// proved, TLS included.
type bounded struct {
	net.Listener

	unproved *unproved
	within   time.Duration
}

// Accept returns the next connection.
func (b bounded) Accept() (net.Conn, error) {
	c, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(b.within)); err != nil {
		_ = c.Close() // gone already; whoever serves finds out
	}
	b.unproved.add(c)
	return c, nil
}
