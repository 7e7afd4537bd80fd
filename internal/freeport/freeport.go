// Package freeport finds addresses of this machine for servers that tests start, stop
// and start again.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
)

// Ports are from first to below end: above, systems take the ports of outgoing
// connections, which would get in the way of a server that is started again.
const (
	first = 20_000
	end   = 32_000
	// block is how many ports one process has to itself.
	block = 600
)

// Addrs returns n different addresses of 127.0.0.1, as host:port, where nobody listens.
// No other process is given them while this one runs, also when what listens there is
// stopped for a while; this one hands them out again only when its ports are used up.
func Addrs(n int) ([]string, error) {
	own.mu.Lock()
	defer own.mu.Unlock()
	if own.claim == nil {
		if err := own.take(); err != nil {
			return nil, err
		}
	}
	var addrs []string
	for range block {
		if len(addrs) == n {
			return addrs, nil
		}
		addr := address(own.next())
		switch l, err := net.Listen("tcp", addr); {
		case errors.Is(err, syscall.EADDRINUSE):
		case err != nil:
			return nil, fmt.Errorf("find a free port: %w", err)
		default:
			if err := l.Close(); err != nil {
				return nil, fmt.Errorf("find a free port: %w", err)
			}
			addrs = append(addrs, addr)
		}
	}
	return nil, fmt.Errorf("find a free port: %d are wanted, of %d most are in use", n, block)
}

// own is the block of this process.
var own ports

// ports is a block of ports that one process has claimed. The claim is a listener at the
// block's first port: the system takes it back when the process ends, however it ends.
type ports struct {
	mu     sync.Mutex
	claim  net.Listener // nil: none yet
	base   int          // the first port, which is not handed out
	handed int          // how many were handed out or found in use
}

// take claims a block, the first that is free from a random one on.
func (p *ports) take() error {
	const blocks = (end - first) / block
	from := rand.IntN(blocks)
	for i := range blocks {
		base := first + (from+i)%blocks*block
		l, err := net.Listen("tcp", address(base))
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			continue
		case err != nil:
			return fmt.Errorf("claim ports: %w", err)
		}
		p.claim, p.base = l, base
		return nil
	}
	return fmt.Errorf("claim ports: all %d blocks of them are in use", blocks)
}

// next is the port whose turn it is.
func (p *ports) next() int {
	port := p.base + 1 + p.handed%(block-1)
	p.handed++
	return port
}

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
