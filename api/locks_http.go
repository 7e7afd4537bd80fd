package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
	"github.com/latchkey-db/latchkey/lock"
)

const (
	// locksPath is what the paths of the HTTP form begin with.
	locksPath = "/api/v1/"
	// lockPath and watchPath are where a lock is shown and watched; pathKey stands for its name.
	lockPath, watchPath = locksPath + "locks/{lock_key}", locksPath + "locks/{lock_key}/watch"
	pathKey             = "{lock_key}"
	// maxLocksBody bounds the bytes of a request's body: 64 names, each character escaped, and
	// all else that a request may have.
	maxLocksBody = 512 << 10
)

// locksAPI serves the Locks service by HTTP, as calls of the gRPC service.
type locksAPI struct {
	calls     latchkeyv1.LocksClient
	endpoints []endpoint
}

// endpoint is one call of the API.
type endpoint struct {
	method, path string
	// query are the parameters that it knows.
	query []string
	// request and answer are of the types that it reads and writes, request nil for nothing.
	request, answer any
	// serve serves a request; name is the lock's in the path. What it returns with an error is not
	// sent. A status of 0 says that the answer is sent already.
	serve func(w http.ResponseWriter, r *http.Request, name string) (status int, answer any, err error)
}

// newLocksAPI returns the API of a service.
func newLocksAPI(calls latchkeyv1.LocksClient) *locksAPI {
	a := &locksAPI{calls: calls}
	a.endpoints = []endpoint{
		posted("locks/acquire", acquiredJSON{}, a.acquire),
		posted("locks/renew", renewedJSON{}, a.renew),
		posted("locks/release", releasedJSON{}, a.release),
		posted("locks/validate", validatedJSON{}, a.validate),
		posted("locks/force-release", releasedJSON{}, a.forceRelease),
		posted("sessions", sessionJSON{}, a.openSession),
		posted("sessions/renew", sessionJSON{}, a.renewSession),
		posted("sessions/close", closedJSON{}, a.closeSession),
		{method: http.MethodGet, path: locksPath + "locks", query: []string{"prefix", "limit", "cursor", "sort"}, answer: listJSON{}, serve: a.list},
		{method: http.MethodGet, path: watchPath, query: []string{"from"}, answer: eventJSON{}, serve: a.watch},
		{method: http.MethodGet, path: lockPath, answer: lockJSON{}, serve: a.get},
	}
	return a
}

// posted is an endpoint that reads a body.
func posted[Request any](path string, answer any, call func(context.Context, *Request) (status int, answer any, err error)) endpoint {
	return endpoint{
		method: http.MethodPost, path: locksPath + path, request: *new(Request), answer: answer,
		serve: func(w http.ResponseWriter, r *http.Request, _ string) (int, any, error) {
			request := new(Request)
			if err := readJSON(http.MaxBytesReader(w, r.Body, maxLocksBody), request); err != nil {
				return 0, nil, err
			}
			return call(r.Context(), request)
		},
	}
}

// ServeHTTP serves one request.
func (a *locksAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e, key := a.find(r.URL.EscapedPath())
	if e == nil {
		answerJSON(w, http.StatusNotFound, errorJSON{Error: "there is nothing at this path"})
		return
	}
	if r.Method != e.method {
		w.Header().Set("Allow", e.method)
		answerJSON(w, http.StatusMethodNotAllowed, errorJSON{Error: "the method must be " + e.method})
		return
	}
	if auth := r.Header.Get("Authorization"); auth != "" {
		r = r.WithContext(metadata.AppendToOutgoingContext(r.Context(), rpctypes.TokenFieldNameSwagger, auth))
	}
	name, err := lockName(key)
	if err == nil {
		err = checkQuery(r, e.query)
	}
	var code int
	var answer any
	if err == nil {
		code, answer, err = e.serve(w, r, name)
	}
	if err != nil {
		answerError(w, err)
	} else if code != 0 {
		answerJSON(w, code, answer)
	}
}

// find returns what is at a path, and the name of the lock in it as it is escaped there. Calls come
// before locks of their names, which can be written with an escaped character.
func (a *locksAPI) find(escaped string) (e *endpoint, name string) {
	path := escaped
	key, of := strings.CutPrefix(escaped, locksPath+"locks/")
	if of && !slices.ContainsFunc(a.endpoints, func(e endpoint) bool { return e.path == escaped }) {
		path = lockPath
		if rest, ok := strings.CutSuffix(key, "/watch"); ok {
			path, key = watchPath, rest
		}
	}
	for i := range a.endpoints {
		if a.endpoints[i].path == path {
			return &a.endpoints[i], key
		}
	}
	return nil, ""
}

// lockName returns the name that is escaped in a path.
func lockName(key string) (string, error) {
	name, err := url.PathUnescape(key)
	if err != nil || !utf8.ValidString(name) {
		return "", &lock.FieldError{Field: "lock_key", Reason: "is not text in UTF-8"}
	}
	return name, nil
}

// checkQuery judges the parameters of a request, each of which is there once.
func checkQuery(r *http.Request, known []string) error {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return invalid("latchkey: the query can't be read: " + err.Error())
	}
	for name, all := range values {
		switch {
		case !slices.Contains(known, name):
			return &lock.FieldError{Field: name, Reason: "is not known here"}
		case len(all) > 1:
			return &lock.FieldError{Field: name, Reason: "is there twice"}
		case !utf8.ValidString(all[0]):
			return &lock.FieldError{Field: name, Reason: "is not text in UTF-8"}
		}
	}
	return nil
}

// readJSON reads a body that is one object of known fields.
func readJSON(body io.Reader, into any) error {
	text, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	if !utf8.Valid(text) {
		return invalid("latchkey: the body is not text in UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	err = decoder.Decode(into)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong) && wrong.Field != "":
		return &lock.FieldError{Field: wrong.Field, Reason: "can't be a " + wrong.Value}
	case err != nil:
		if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
			return &lock.FieldError{Field: strings.Trim(field, `"`), Reason: "is not known here"}
		}
		return invalid("latchkey: the body is no JSON object: " + err.Error())
	case len(bytes.TrimSpace(text[decoder.InputOffset():])) > 0:
		return invalid("latchkey: there is more behind the JSON object")
	default:
		return nil
	}
}

// answerJSON sends an answer.
func answerJSON(w http.ResponseWriter, code int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer) // a client that is gone needs no answer
}

// answerError answers a request that has failed.
func answerError(w http.ResponseWriter, err error) {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		answerJSON(w, http.StatusRequestEntityTooLarge, errorJSON{Error: "latchkey: the body is too large"})
		return
	}
	err = lockStatus(err)
	code := httpCode(err)
	if code == http.StatusUnauthorized {
		w.Header().Set("Www-Authenticate", "Bearer")
	}
	answerJSON(w, code, errorOf(err))
}

func errorOf(err error) errorJSON {
	return errorJSON{Error: text(err), Field: fieldOf(err), Deadlock: deadlockJSONOf(detailOf[*latchkeyv1.Deadlock](err))}
}

// unauthenticated are the errors that a log-in helps against. etcd has other codes for some.
var unauthenticated = []error{rpctypes.ErrGRPCUserEmpty, rpctypes.ErrGRPCInvalidAuthToken, rpctypes.ErrGRPCAuthOldRevision}

// httpCode returns the status of HTTP for an error.
func httpCode(err error) int {
	switch {
	case slices.ContainsFunc(unauthenticated, func(is error) bool { return errors.Is(err, is) }):
		return http.StatusUnauthorized
	case errors.Is(err, rpctypes.ErrGRPCCompacted):
		return http.StatusGone
	case text(err) == text(errTooManyRequests):
		return http.StatusTooManyRequests
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.FailedPrecondition, codes.PermissionDenied:
		return http.StatusForbidden
	case codes.Aborted:
		return http.StatusConflict
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
		return http.StatusServiceUnavailable
	case codes.ResourceExhausted:
		return http.StatusInsufficientStorage
	case codes.Unimplemented:
		return http.StatusNotImplemented
	default:
		return http.StatusInternalServerError
	}
}
