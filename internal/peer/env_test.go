package peer

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// net3 is a cluster of three nodes, 1 to 3, whose connections tests break.
type net3 struct {
	meshes map[uint64]*Mesh
	doors  map[uint64]*door
}

// door is a listener whose connections can be cut, or stand still.
type door struct {
	net.Listener

	mu     sync.Mutex
	conns  map[*passage]bool
	closed bool
	// frozen is open while nothing is read or written.
	frozen chan struct{}
}

type passage struct {
	net.Conn
	d *door
}

func (d *door) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		d.mu.Lock()
		if d.closed {
			d.mu.Unlock()
			c.Close()
			continue
		}
		p := &passage{c, d}
		d.conns[p] = true
		d.mu.Unlock()
		return p, nil
	}
}

func (p *passage) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	p.d.pass()
	return n, err
}

func (p *passage) Write(b []byte) (int, error) {
	p.d.pass()
	return p.Conn.Write(b)
}

// pass waits while the node stands still.
func (d *door) pass() {
	d.mu.Lock()
	frozen := d.frozen
	d.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

func (p *passage) Close() error {
	p.d.mu.Lock()
	delete(p.d.conns, p)
	p.d.mu.Unlock()
	return p.Conn.Close()
}

// cut breaks all connections.
func (d *door) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p := range d.conns {
		p.Conn.Close()
	}
}

// shut breaks all connections and lets none in.
func (d *door) shut(shut bool) {
	d.mu.Lock()
	d.closed = shut
	d.mu.Unlock()
	if shut {
		d.cut()
	}
}

// freeze has the node stand still until thaw.
func (d *door) freeze() (thaw func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.frozen = make(chan struct{})
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		close(d.frozen)
		d.frozen = nil
	})
}

// testTimeout is long for machines that are busy; shortly is for tests that wait for it.
const testTimeout = time.Minute

func shortly(c *Config) { c.Timeout = 300 * time.Millisecond }

// start starts the cluster. change alters the configuration of each node.
func start(t *testing.T, change func(*Config)) *net3 {
	t.Helper()
	n := &net3{meshes: make(map[uint64]*Mesh), doors: make(map[uint64]*door)}
	for id := uint64(1); id <= 3; id++ {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		n.doors[id] = &door{Listener: l, conns: make(map[*passage]bool)}
	}
	for id := uint64(1); id <= 3; id++ {
		c := Config{
			Secret: []byte("secret"), Node: id, Instance: fmt.Sprint("disk of ", id), Timeout: testTimeout,
			ClusterID: func() uint64 { return 0 },
			URLs: func(node uint64) []string {
				if n.doors[node] == nil {
					return nil
				}
				return []string{"http://" + n.doors[node].Addr().String()}
			},
			Admit: func(Hello) error { return nil },
			Log:   slog.New(slog.NewTextHandler(os.Stderr, nil)),
		}
		if change != nil {
			change(&c)
		}
		m := New(c)
		n.meshes[id] = m
		if err := m.Serve(n.doors[id], nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
	}
	return n
}

// echo answers each call with who called, on which node, and what.
func (n *net3) echo() {
	for id, m := range n.meshes {
		m.Handle(func(_ context.Context, from uint64, request []byte) []byte {
			return fmt.Appendf(nil, "%d to %d: %s", from, id, request)
		})
	}
}

// until calls fn until it reports success.
func until(t *testing.T, what string, fn func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !fn(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}
