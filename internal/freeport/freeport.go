// Package freeport finds addresses of this machine for servers that tests start, stop
// and start again.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
)

// Ports are from first to below end: above, systems take the ports of outgoing
// connections, which would get in the way of a server that is started again.
const (
	first = 20_000
	end   = 32_000
)

// Addrs returns n different addresses of 127.0.0.1, as host:port, where nobody listens.
// They are drawn at random, so that tests that run side by side hardly meet.
func Addrs(n int) (addrs []string, err error) {
	var held []net.Listener
	defer func() {
		for _, l := range held {
			err = errors.Join(err, l.Close())
		}
	}()
	for len(addrs) < n {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+rand.IntN(end-first)))
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			continue
		case err != nil:
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		held = append(held, l)
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}
