package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Late is the traffic between a node and the others of its network, which passes through this
// program so that it can be late. What is sent later in a direction arrives later: packets
// don't overtake each other. Clients reach the node as before.
//
// A direction that is held up carries all that has come meanwhile at once, and goes on.
type Late struct {
	network *Network
	node    int
	hold    func() time.Duration
	// devices are the nodes' ends, and nodes the node of each address.
	devices []*os.File
	nodes   map[netip.Addr]int
	// ways are the directions, from and to a node.
	ways map[[2]int]chan []byte
	// held counts how often a direction was held up.
	held atomic.Int64
	stop chan struct{}
	wg   sync.WaitGroup
}

// lateQueue is how many packets of a direction are under way at most; others are lost.
const lateQueue = 1 << 14

// maxPacket is the size of the longest packet of IPv4.
const maxPacket = 1 << 16

// Delay leads what a node and the others send each other through this program until the
// result is closed. hold says for how long a direction is held up that has something to carry
// now, 0 for not.
func (n *Network) Delay(node int, hold func() time.Duration) (l *Late, err error) {
	l = &Late{
		network: n, node: node, hold: hold, devices: make([]*os.File, len(n.namespaces)),
		nodes: make(map[netip.Addr]int), ways: make(map[[2]int]chan []byte), stop: make(chan struct{}),
	}
	for i := range n.namespaces {
		addr, err := netip.ParseAddr(n.addr(i))
		if err == nil {
			l.nodes[addr] = i
			err = l.open(i)
		}
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	for i := range n.namespaces {
		if i == node {
			continue
		}
		for _, way := range [][2]int{{i, node}, {node, i}} {
			l.ways[way] = make(chan []byte, lateQueue)
			l.wg.Go(func() { l.deliver(l.ways[way], l.devices[way[1]]) })
		}
	}
	for i := range l.devices {
		l.wg.Go(func() { l.read(i) })
	}
	for way := range l.ways {
		if err := l.route("add", way[0], way[1]); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	return l, nil
}

func (l *Late) name(i int) string { return fmt.Sprintf("%st%d", l.network.bridge, i+1) }

// open makes a node's device.
func (l *Late) open(i int) (err error) {
	if l.devices[i], err = openTUN(l.name(i)); err != nil {
		return err
	}
	ns := l.network.namespaces[i]
	return errors.Join(ip("link", "set", l.name(i), "netns", ns), ip("-n", ns, "link", "set", l.name(i), "up"))
}

// route has a node send what is for another to its device, or no longer.
func (l *Late) route(verb string, from, to int) error {
	return ip("-n", l.network.namespaces[from], "route", verb, l.network.addr(to)+"/32", "dev", l.name(from), "src", l.network.addr(from))
}

// read takes what a node sends, until its device is closed.
func (l *Late) read(i int) {
	buf := make([]byte, maxPacket)
	for {
		size, err := l.devices[i].Read(buf)
		if err != nil {
			return
		}
		const header, destination = 20, 16
		if size < header || buf[0]>>4 != 4 {
			continue
		}
		to, known := l.nodes[netip.AddrFrom4([4]byte(buf[destination:header]))]
		if way := l.ways[[2]int{i, to}]; known && way != nil {
			select {
			case way <- append([]byte(nil), buf[:size]...):
			default:
			}
		}
	}
}

// deliver hands packets to a node.
func (l *Late) deliver(way <-chan []byte, to *os.File) {
	for {
		var packet []byte
		select {
		case packet = <-way:
		case <-l.stop:
			return
		}
		if d := l.hold(); d > 0 {
			l.held.Add(1)
			select {
			case <-time.After(d):
			case <-l.stop:
				return
			}
		}
		_, _ = to.Write(packet) // a packet that the node does not take is lost
		for range len(way) {
			_, _ = to.Write(<-way)
		}
	}
}

// Held returns how often a direction was held up.
func (l *Late) Held() int64 { return l.held.Load() }

// Close has the traffic take its old way. What is under way is lost.
func (l *Late) Close() error {
	close(l.stop)
	var errs []error
	for _, d := range l.devices {
		if d != nil {
			errs = append(errs, d.Close()) // its routes go with it
		}
	}
	l.wg.Wait()
	return errors.Join(errs...)
}

// HalfOfEverySecond holds up for a time between two bounds in the first half of every second, and
// not in the second.
func HalfOfEverySecond(seed uint64, least, most time.Duration) func() time.Duration {
	var mu sync.Mutex
	rnd, begin := rand.New(rand.NewPCG(seed, 78)), time.Now()
	return func() time.Duration {
		if time.Since(begin)%time.Second >= time.Second/2 {
			return 0
		}
		mu.Lock()
		defer mu.Unlock()
		return between(rnd, least, most)
	}
}
