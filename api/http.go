package api

import (
	"encoding/json"
	"expvar"
	"fmt"
	"net/http"
	"net/http/pprof"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
)

// http2Major is the major version of HTTP by which gRPC calls come.
const http2Major = 2

// versions is the answer of /version.
type versions struct {
	Server  string `json:"etcdserver"`
	Cluster string `json:"etcdcluster"`
	Storage string `json:"storage"`
}

// httpHandlers returns what is served by HTTP of each traffic that has any. Calls of the lock API pass the steps.
func (s *Server) httpHandlers(locks latchkeyv1.LocksServer, steps *interceptors) (map[Traffic]http.Handler, error) {
	checks, err := newHealthChecks(&s.config)
	if err != nil {
		return nil, err
	}
	version, err := json.Marshal(versions{Server: ServerVersion, Cluster: ClusterVersion, Storage: ClusterVersion})
	if err != nil {
		return nil, fmt.Errorf("encode versions: %w", err)
	}

	metrics := http.NewServeMux()
	checks.install(metrics)
	metrics.Handle("/metrics", promhttp.HandlerFor(s.config.Metrics, promhttp.HandlerOpts{}))

	mux := http.NewServeMux()
	if s.gateway != nil {
		mux.Handle("/v3/", s.gateway)
	}
	mux.Handle("/", metrics)
	mux.Handle("/version", onlyGet(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(version) // a client that is gone needs no answer
	}))
	mux.Handle("/debug/vars", onlyGet(expvar.Handler().ServeHTTP))
	if s.config.EnablePprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	control := &access{origins: s.config.AllowedOrigins, hosts: s.config.AllowedHosts, next: mux}
	if s.gateway != nil {
		calls := newInProcess(s.gateway.conn, steps)
		latchkeyv1.RegisterLocksServer(calls, locks)
		control.next = beside(mux, newLocksAPI(latchkeyv1.NewLocksClient(calls)))
	}
	if s.gateway != nil && s.config.CertificateUsers {
		control.users = s.config.Users
	}
	handlers := make(map[Traffic]http.Handler)
	handlers[AllTraffic] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		restoreTLS(r)
		if r.ProtoMajor == http2Major && isGRPC(r.Header.Get("Content-Type")) {
			s.inner.ServeHTTP(w, r)
			return
		}
		control.ServeHTTP(w, r)
	})
	handlers[HTTPTraffic], handlers[MetricsTraffic] = control, metrics
	return handlers, nil
}

// beside serves the paths of the lock API, which a mux would clean: names of locks are in them as
// they are.
func beside(mux, locks http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.EscapedPath(), locksPath) {
			locks.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// counted makes Stop wait for what h serves. net/http waits for no handler whose
// connection was taken over, as those of websockets are.
func (s *Server) counted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		cut := s.cut
		if !cut {
			s.handlers.Add(1)
		}
		s.mu.Unlock()
		if cut {
			http.Error(w, text(errStopped), http.StatusServiceUnavailable)
			return
		}
		defer s.handlers.Done()
		h.ServeHTTP(w, r)
	})
}

// onlyGet answers any other method than GET as etcd does.
func onlyGet(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
			return
		}
		h(w, r)
	})
}
