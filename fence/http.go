package fence

import (
	"errors"
	"net/http"
)

// Header is the header of a request that carries the token, in decimal.
const Header = "Fencing-Token"

// SetHeader has a request carry a token.
func SetHeader(r *http.Request, t Token) { r.Header.Set(Header, t.String()) }

// Handler returns a handler that lets requests through to next by the tokens in their
// headers, each while nobody with a lower token is being served. A request without one is
// answered 428 (precondition required), one with a stale token 412 (precondition failed), one
// with anything else there 400. resource names what a request is about; the Guard keeps an
// entry for each name, so that names should be of what exists, not of what a client makes up.
func Handler(g *Guard, resource func(*http.Request) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		values := r.Header.Values(Header)
		if len(values) == 0 {
			http.Error(w, "the header "+Header+" is missing", http.StatusPreconditionRequired)
			return
		}
		t, err := ParseToken(values[0])
		if err == nil && len(values) > 1 {
			err = ErrInvalid
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		leave, err := g.Enter(r.Context(), resource(r), t)
		if errors.Is(err, ErrStale) {
			http.Error(w, err.Error(), http.StatusPreconditionFailed)
			return
		}
		if err != nil {
			return // the client has gone
		}
		defer leave()
		next.ServeHTTP(w, r)
	})
}
