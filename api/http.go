package api

import (
	"encoding/json"
	"expvar"
	"fmt"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// versions is the answer of /version.
type versions struct {
	Server  string `json:"etcdserver"`
	Cluster string `json:"etcdcluster"`
	Storage string `json:"storage"`
}

// handler returns what is served to plain HTTP.
func (s *Server) handler() (http.Handler, error) {
	checks, err := newHealthChecks(&s.config)
	if err != nil {
		return nil, err
	}
	version, err := json.Marshal(versions{Server: ServerVersion, Cluster: ClusterVersion, Storage: ClusterVersion})
	if err != nil {
		return nil, fmt.Errorf("encode versions: %w", err)
	}

	mux := http.NewServeMux()
	checks.install(mux)
	mux.Handle("/version", onlyGet(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(version) // a client that is gone needs no answer
	}))
	mux.Handle("/metrics", promhttp.HandlerFor(s.config.Metrics, promhttp.HandlerOpts{}))
	mux.Handle("/debug/vars", onlyGet(expvar.Handler().ServeHTTP))
	if s.config.EnablePprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux, nil
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
