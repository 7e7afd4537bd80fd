package api

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
)

// anyone in a list of origins or hosts stands for all.
const anyone = "*"

// access is what every HTTP request passes first: old paths, the host that it asks
// for, and the headers that let pages of other origins read the answer.
type access struct {
	// origins and hosts are those that are let in; none at all lets all in.
	origins, hosts []string
	next           http.Handler
}

// ServeHTTP judges a request and passes it on.
func (a *access) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if rest, ok := strings.CutPrefix(r.URL.Path, "/v3beta/"); ok {
		r.URL.Path = "/v3/" + rest
	}
	if host := hostname(r); r.TLS == nil && !allows(a.hosts, host) {
		http.Error(w, fmt.Sprintf("The host %q of the request is not in --host-whitelist. "+
			"Requests over TLS may name any host.", host), http.StatusMisdirectedRequest)
		return
	}
	if origin := r.Header.Get("Origin"); allows(a.origins, anyone) {
		allowOrigin(w, anyone)
	} else if allows(a.origins, origin) {
		allowOrigin(w, origin)
	}
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusOK)
		return
	}
	a.next.ServeHTTP(w, r)
}

// allows tells whether a list lets name in. A name that is not in the list, even
// anyone, is let in only by a list that lets in all.
func allows(list []string, name string) bool {
	return len(list) == 0 || slices.Contains(list, anyone) || slices.Contains(list, name)
}

// hostname returns the host that a request asks for, without its port.
func hostname(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		return r.Host
	}
	return host
}

func allowOrigin(w http.ResponseWriter, origin string) {
	h := w.Header()
	h.Add("Access-Control-Allow-Methods", "POST, GET, OPTIONS, PUT, DELETE")
	h.Add("Access-Control-Allow-Origin", origin)
	h.Add("Access-Control-Allow-Headers", "accept, content-type, authorization")
}
