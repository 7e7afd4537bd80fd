package node

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkey-db/latchkey/api"
)

// probeHeaderTimeout bounds how long a request for metrics or health may take to come.
const probeHeaderTimeout = time.Minute

// probes serves metrics and health on the listeners that are there for that alone, before
// the node has joined its cluster and after.
type probes struct {
	server  http.Server
	handler atomic.Pointer[http.Handler]
	wg      sync.WaitGroup
}

// openProbes begins to serve them.
func (n *Node) openProbes(*Options) error {
	starting, err := api.Starting(n.metrics.registry, n.log)
	if err != nil {
		return err
	}
	p := &probes{}
	p.handler.Store(&starting)
	p.server = http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*p.handler.Load()).ServeHTTP(w, r) }),
		ReadHeaderTimeout: probeHeaderTimeout,
		ErrorLog:          slog.NewLogLogger(n.log.Handler(), slog.LevelDebug),
	}
	n.probes = p
	for _, l := range n.listeners {
		if l.traffic != api.MetricsTraffic {
			continue
		}
		served := l.Listener
		if l.secure {
			config := n.tls.Clone()
			config.NextProtos = []string{"http/1.1"}
			served = tls.NewListener(l, config)
		}
		p.wg.Go(func() {
			if err := p.server.Serve(served); err != http.ErrServerClosed { //nolint:errorlint // as it is documented
				n.fail(err)
			}
		})
	}
	return nil
}

// become has the node's server answer from now on.
func (p *probes) become(s *api.Server) error {
	h, err := s.Handler(api.MetricsTraffic)
	if err == nil {
		p.handler.Store(&h)
	}
	return err
}

// close ends the serving, after what runs while ctx lasts.
func (p *probes) close(ctx context.Context) {
	if p.server.Shutdown(ctx) != nil {
		_ = p.server.Close()
	}
	p.wg.Wait()
}
