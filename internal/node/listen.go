package node

import (
	"errors"
	"fmt"
	"net"

	"go.etcd.io/etcd/client/pkg/v3/types"
)

// ErrListen is returned when a port can't be opened, mostly because another
// process has it.
var ErrListen = errors.New("can't listen")

// listen opens the listeners of urls.
func listen(urls types.URLs) ([]net.Listener, error) {
	var listeners []net.Listener
	for _, u := range urls {
		network, addr := "tcp", u.Host
		if u.Scheme == "unix" || u.Scheme == "unixs" {
			network, addr = "unix", u.Host+u.Path
		}
		l, err := net.Listen(network, addr)
		if err != nil {
			for _, open := range listeners {
				_ = open.Close()
			}
			return nil, fmt.Errorf("%w on %s: %w", ErrListen, u.String(), err)
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}
