package node

import (
	"errors"
	"fmt"
	"net"
	"net/url"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/pkg/v3/runtime"

	"github.com/latchkey-db/latchkey/api"
	"github.com/latchkey-db/latchkey/internal/config"
)

// ErrListen is returned when a port can't be opened, mostly because another
// process has it.
var ErrListen = errors.New("can't listen")

// reservedFiles is how many of the files that the process may open are kept for the
// state and the logs.
const reservedFiles = 1200

// listener is where clients come in.
type listener struct {
	net.Listener

	// traffic is what is served on it.
	traffic api.Traffic
	// secure is set where that is over TLS.
	secure bool
}

// plain returns listeners without TLS.
func plain(all []net.Listener) []listener {
	var listeners []listener
	for _, l := range all {
		listeners = append(listeners, listener{Listener: l})
	}
	return listeners
}

// listen opens the listeners for clients: those of the client URLs, then those of
// HTTP and of metrics alone. URLs of HTTP take it from the client URLs.
func listen(c *config.Config) ([]listener, error) {
	clients := api.AllTraffic
	if len(c.ListenHTTPURLs) > 0 {
		clients = api.GRPCTraffic
	}
	var listeners []listener
	for _, group := range []struct {
		urls    types.URLs
		traffic api.Traffic
	}{
		{c.ListenClientURLs, clients},
		{c.ListenHTTPURLs, api.HTTPTraffic},
		{c.ListenMetricsURLs, api.MetricsTraffic},
	} {
		for _, u := range group.urls {
			l, err := listenOn(c, u)
			if err != nil {
				for _, open := range listeners {
					_ = open.Close()
				}
				return nil, fmt.Errorf("%w on %s: %w", ErrListen, u.String(), err)
			}
			l.traffic = group.traffic
			listeners = append(listeners, l)
		}
	}
	return listeners, nil
}

// listenOn opens the listener of one URL.
func listenOn(c *config.Config, u url.URL) (listener, error) {
	addr := u.Host
	if u.Scheme == "unix" || u.Scheme == "unixs" {
		addr = u.Host + u.Path
	}
	l, err := transport.NewListenerWithOpts(addr, u.Scheme, transport.WithSkipTLSInfoCheck(true),
		transport.WithSocketOpts(&transport.SocketOpts{ReusePort: c.ReusePort, ReuseAddress: c.ReuseAddress}))
	if err != nil {
		return listener{}, err
	}
	if most := maxConns(); most > 0 {
		l = transport.LimitListener(l, most)
	}
	return listener{Listener: l, secure: u.Scheme == "https" || u.Scheme == "unixs"}, nil
}

// maxConns is how many connections a listener holds at a time: what the files of
// the process allow, and at most half of them where there are few. 0 stands for no
// bound.
func maxConns() int {
	files, err := runtime.FDLimit()
	if err != nil || files > 1<<30 {
		return 0
	}
	return int(max(files-min(files, reservedFiles), files/2, 1))
}
