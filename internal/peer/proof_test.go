package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// met is a list of nodes that were judged, or whose traffic was counted.
type met struct {
	mu  sync.Mutex
	ids []uint64
}

func (m *met) add(id uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ids = append(m.ids, id)
}

func (m *met) has(id uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.ids, id)
}

// tap is a listener in front of a node that keeps what callers say.
type tap struct {
	net.Listener

	mu   sync.Mutex
	said [][]byte
}

// newTap answers each connection with fn.
func newTap(t *testing.T, fn func(tp *tap, c net.Conn)) *tap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tp := &tap{Listener: l}
	var serving sync.WaitGroup
	var open sync.Map
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open.Store(c, true)
			serving.Go(func() {
				defer c.Close()
				fn(tp, c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		open.Range(func(c, _ any) bool {
			c.(net.Conn).Close()
			return true
		})
		serving.Wait()
	})
	return tp
}

// hear keeps what comes until the connection ends, and hands it on to all of to.
func (tp *tap) hear(c net.Conn, to ...io.Writer) {
	tp.mu.Lock()
	at := len(tp.said)
	tp.said = append(tp.said, nil)
	tp.mu.Unlock()
	b := make([]byte, 4096)
	for {
		n, err := c.Read(b)
		tp.mu.Lock()
		tp.said[at] = append(tp.said[at], b[:n]...)
		tp.mu.Unlock()
		for _, w := range to {
			_, _ = w.Write(b[:n])
		}
		if err != nil {
			return
		}
	}
}

func (tp *tap) heard() []byte {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	return bytes.Join(tp.said, nil)
}

// A node says nothing of its data directory to whoever answers at another node's address.
func TestStrangersHearNothing(t *testing.T) {
	stranger := newTap(t, func(tp *tap, c net.Conn) {
		h := &handshake{conn: c, secret: []byte("guessed")}
		var o opening
		if h.read(make([]byte, len(preface))) == nil && h.receive(&o) == nil {
			_ = h.prove(asCalled, &challenge{Node: o.To, Nonce: nonce()})
		}
		tp.hear(c)
	})
	n := start(t, func(c *Config) {
		shortly(c)
		urls := c.URLs
		c.URLs = func(node uint64) []string {
			if node == 9 {
				return []string{"http://" + stranger.Addr().String()}
			}
			return urls(node)
		}
	})
	n.meshes[1].Reach(9)
	until(t, "a second attempt", func() bool {
		stranger.mu.Lock()
		defer stranger.mu.Unlock()
		return len(stranger.said) > 2
	})
	if said := stranger.heard(); bytes.Contains(said, []byte("disk of")) || bytes.Contains(said, []byte("secret")) {
		t.Errorf("a stranger was told: %q", said)
	}
}

// What one node said to another on its way in lets nobody in anywhere.
func TestReplayedHandshakesAreRefused(t *testing.T) {
	admitted := map[uint64]*met{1: {}, 2: {}, 3: {}}
	var relay *tap
	n := start(t, func(c *Config) {
		id := c.Node
		c.Admit = func(h Hello) error {
			admitted[id].add(h.Node)
			return nil
		}
		if id == 1 {
			urls := c.URLs
			c.URLs = func(node uint64) []string {
				if node == 2 {
					return []string{"http://" + relay.Addr().String()}
				}
				return urls(node)
			}
		}
	})
	relay = newTap(t, func(tp *tap, c net.Conn) {
		to, err := net.Dial("tcp", n.doors[2].Addr().String())
		if err != nil {
			return
		}
		defer to.Close()
		go func() { _, _ = io.Copy(c, to) }()
		tp.hear(c, to)
	})
	n.echo()
	if _, err := n.meshes[1].Call(t.Context(), 2, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if !admitted[2].has(1) {
		t.Fatal("node 1 was let in unseen")
	}
	said := relay.heard()
	for _, to := range []uint64{2, 3} {
		admitted[to].mu.Lock()
		admitted[to].ids = nil
		admitted[to].mu.Unlock()
		c, err := net.Dial("tcp", n.doors[to].Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(said)
		// The node ends the connection, or has the handshake time out.
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
		_, _ = io.Copy(io.Discard, c)
		c.Close()
		if admitted[to].has(1) {
			t.Errorf("node %d believed what node 1 had said to node 2", to)
		}
	}
}

// What a node proves when it is called proves nothing when it calls.
func TestReflectedProofsAreRefused(t *testing.T) {
	var n *net3
	var mirror *tap
	var told refusals
	mirror = newTap(t, func(_ *tap, c net.Conn) {
		h := &handshake{conn: c}
		first := make([]byte, len(preface))
		var o opening
		if h.read(first) != nil || h.receive(&o) != nil {
			return
		}
		back, err := net.Dial("tcp", n.doors[1].Addr().String())
		if err != nil {
			return
		}
		defer back.Close()
		_, _ = back.Write([]byte(preface))
		o.Node, o.To = o.To, o.Node
		if (&handshake{conn: back}).send(&o) != nil {
			return
		}
		go func() { _, _ = io.Copy(back, c) }()
		_, _ = io.Copy(c, back)
	})
	n = start(t, func(c *Config) {
		c.Refused = told.add
		urls := c.URLs
		c.URLs = func(node uint64) []string {
			if node == 2 && c.Node == 1 {
				return []string{"http://" + mirror.Addr().String()}
			}
			return urls(node)
		}
	})
	n.echo()
	if _, err := n.meshes[1].Call(t.Context(), 2, []byte("x")); !errors.Is(err, ErrUnsent) {
		t.Errorf("a node took itself for another: %v", err)
	}
	until(t, "the refusal", func() bool { return told.from(2) != nil })
	if e := told.from(2); e.Kind != RefusedCluster || e.Proved {
		t.Errorf("the mirror was refused as %+v", e)
	}
}

// A stranger that is asked to let a node in can't have it stop.
func TestStrangersRefuseNobodyForGood(t *testing.T) {
	var told refusals
	stranger := newTap(t, func(_ *tap, c net.Conn) {
		h := &handshake{conn: c, secret: []byte("guessed")}
		var o opening
		if h.read(make([]byte, len(preface))) != nil || h.receive(&o) != nil {
			return
		}
		_ = h.prove(asCalled, &challenge{Node: o.To, Nonce: nonce(), Refused: RefusedBarred, Text: "go away"})
	})
	n := start(t, func(c *Config) {
		c.Refused = told.add
		c.URLs = func(uint64) []string { return []string{"http://" + stranger.Addr().String()} }
	})
	n.meshes[1].Reach(2)
	until(t, "the refusal", func() bool { return told.from(2) != nil })
	if e := told.from(2); e.Kind == RefusedBarred || e.Proved {
		t.Errorf("a stranger was believed: %+v", e)
	}
}

// Nothing is kept of those who are not let in, whoever they say they are.
func TestStrangersAreNotCounted(t *testing.T) {
	var counted met
	n := start(t, func(c *Config) {
		c.Traffic = func(node uint64) Traffic {
			counted.add(node)
			return uncounted{}
		}
	})
	to := n.meshes[2]
	var strangers sync.WaitGroup
	for id := uint64(100); id < 200; id++ {
		strangers.Go(func() {
			c := Config{Secret: []byte("another"), Node: id, ClusterID: func() uint64 { return 0 }}
			conn, err := net.Dial("tcp", n.doors[2].Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			var refused *RefusedError
			err = (&Mesh{cfg: c}).call(conn, greeting{To: 2, Purpose: carriesCalls})
			if !errors.As(err, &refused) || !strings.Contains(refused.Text, "--initial-cluster-token") {
				t.Errorf("a stranger: %v", err)
			}
		})
	}
	strangers.Wait()
	for id := uint64(100); id < 200; id++ {
		if counted.has(id) {
			t.Fatalf("node %d, which nobody knows, is counted", id)
		}
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	if len(to.inbound) > 0 || len(to.callers) > 0 {
		t.Errorf("%d connections are counted", len(to.inbound))
	}
}

// A stranger who knows the secret and is not admitted is not counted either.
func TestUnadmittedAreNotCounted(t *testing.T) {
	var counted met
	n := start(t, func(c *Config) {
		c.Traffic = func(node uint64) Traffic {
			counted.add(node)
			return uncounted{}
		}
		c.Admit = func(h Hello) error {
			if h.Node > 3 {
				return fmt.Errorf("node %x is no member", h.Node)
			}
			return nil
		}
	})
	conn, err := net.Dial("tcp", n.doors[2].Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stranger := &Mesh{cfg: Config{Secret: []byte("secret"), Node: 77, ClusterID: func() uint64 { return 0 }}}
	var refused *RefusedError
	if err := stranger.call(conn, greeting{To: 2, Purpose: carriesCalls}); !errors.As(err, &refused) || !refused.Proved {
		t.Errorf("a stranger: %v", err)
	}
	if counted.has(77) {
		t.Error("who was not admitted is counted")
	}
}

// Large and malformed messages end a handshake before they are read.
func TestHandshakesAreSmall(t *testing.T) {
	n := start(t, nil)
	size := func(n int) []byte { return binary.BigEndian.AppendUint32([]byte(preface), uint32(n)) }
	opened, err := json.Marshal(opening{versions: spoken, Node: 1, To: 2, Nonce: nonce()})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"a large opening":  size(maxGreeting + 1),
		"a huge opening":   size(1 << 30),
		"another protocol": []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
		"no JSON":          append(size(4), "1234"...),
		"a large greeting": binary.BigEndian.AppendUint32(append(size(len(opened)), opened...), 128<<20),
	} {
		c, err := net.Dial("tcp", n.doors[2].Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		// testTimeout would end it as well, so that half of it tells.
		_ = c.SetReadDeadline(time.Now().Add(testTimeout / 2))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s is waited for", name)
		}
		c.Close()
	}
}

// A crowd of connections that say nothing is bounded, and keeps nobody out.
func TestSilentCrowdIsBounded(t *testing.T) {
	n := start(t, nil)
	n.echo()
	for range 3 * maxUnproved {
		c, err := net.Dial("tcp", n.doors[2].Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	if _, err := n.meshes[1].Call(t.Context(), 2, []byte("x")); err != nil {
		t.Error(err)
	}
	until(t, "the end of the oldest", func() bool {
		n.doors[2].mu.Lock()
		defer n.doors[2].mu.Unlock()
		return len(n.doors[2].conns) <= maxUnproved+10
	})
}

// A caller that was let in and then is gone without a word, as one whose link is cut, holds
// nothing here for ever.
func TestSilentGuestIsDropped(t *testing.T) {
	n := start(t, shortly)
	conn, err := net.Dial("tcp", n.doors[2].Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := n.meshes[1].call(conn, greeting{To: 2, Purpose: carriesCalls}); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	heard, err := io.Copy(io.Discard, conn)
	if err != nil || heard == 0 {
		t.Errorf("heard %d bytes, then %v: the connection is to be kept a while, and then closed", heard, err)
	}
	until(t, "the connection to be forgotten", n.forgotten)
}

// forgotten reports whether node 2 has no connection from node 1.
func (n *net3) forgotten() bool {
	m := n.meshes[2]
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.inbound[1] == 0
}

// Nor does one that has calls answered and does not read the answers.
func TestDeafGuestIsDropped(t *testing.T) {
	n := start(t, shortly)
	n.meshes[2].Handle(func(context.Context, uint64, []byte) []byte { return make([]byte, 16<<20) })
	conn, err := net.Dial("tcp", n.doors[2].Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := n.meshes[1].call(conn, greeting{To: 2, Purpose: carriesCalls}); err != nil {
		t.Fatal(err)
	}
	s := n.meshes[1].stream(conn, 2)
	for number := range uint64(8) {
		if err := s.send(appendRecord(nil, opCall, number+1, []byte("call"))); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the connection to be let in", func() bool { return !n.forgotten() })
	until(t, "the connection to be forgotten", n.forgotten)
}
