package api

import (
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// anyone in a list of origins or hosts stands for all.
const anyone = "*"

// access is what every HTTP request passes first: old paths, the host that it asks
// for, and the origin of the page that made it. A browser sends some requests, and opens
// websockets, before it asks what a page may do, and only keeps answers from it; so what
// pages of other origins ask of the API is refused.
type access struct {
	// hosts are those that are let in; none at all lets all in.
	hosts []string
	// origins are those whose pages are let in; none at all lets in only those that were
	// served where the request goes.
	origins []string
	// users is nil where a certificate's common name is nobody's name.
	users Users
	next  http.Handler
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
	if refused, err := a.namesUser(r); err != nil {
		http.Error(w, text(toStatus(err)), http.StatusServiceUnavailable)
		return
	} else if refused {
		http.Error(w, "The common name of a client's certificate does not name a user here. "+
			"Use a certificate without one, and a token.", http.StatusBadRequest)
		return
	}
	origin := r.Header.Get("Origin")
	listed := slices.Contains(a.origins, anyone) || slices.Contains(a.origins, origin)
	if foreign := origin != "" && !sameOrigin(r, origin); foreign && !listed {
		if isAPI(r) {
			http.Error(w, fmt.Sprintf("Pages of %q may not use this API: --cors does not name their origin.", origin), http.StatusForbidden)
			return
		}
	} else if len(a.origins) == 0 || slices.Contains(a.origins, anyone) {
		allowOrigin(w, anyone)
	} else if listed {
		allowOrigin(w, origin)
	}
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusOK)
		return
	}
	a.next.ServeHTTP(w, r)
}

// sameOrigin tells whether a page's origin is where its request goes. Who serves pages and
// the API may have TLS end before it, and name the port that browsers leave out.
func sameOrigin(r *http.Request, origin string) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return false
	}
	if strings.EqualFold(u.Host, r.Host) {
		return true
	}
	port, ok := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	return ok && u.Port() == "" && strings.EqualFold(u.Host+":"+port, r.Host)
}

// isAPI tells whether a request is to one of the JSON APIs, whose calls are their callers'.
func isAPI(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/v3/") || strings.HasPrefix(r.URL.Path, locksPath)
}

// namesUser tells whether a request to the gateway comes with a certificate that
// names a user: the gateway's calls would not be that user's.
func (a *access) namesUser(r *http.Request) (bool, error) {
	if a.users == nil || r.TLS == nil || !isAPI(r) {
		return false, nil
	}
	users, err := a.users.Users(r.Context())
	if err != nil || !users.Enabled {
		return false, err
	}
	return slices.ContainsFunc(r.TLS.VerifiedChains, func(chain []*x509.Certificate) bool {
		return len(chain) > 0 && chain[0].Subject.CommonName != ""
	}), nil
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
