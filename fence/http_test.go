package fence_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/latchkey-db/latchkey/fence"
)

func TestHandler(t *testing.T) {
	var g fence.Guard
	served := 0
	h := fence.Handler(&g, func(r *http.Request) string { return r.URL.Path }, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		served++
		w.WriteHeader(http.StatusNoContent)
	}))
	for _, step := range []struct {
		path   string
		tokens []string
		want   int
	}{
		{"/a", nil, http.StatusPreconditionRequired},
		{"/a", []string{"7"}, http.StatusNoContent},
		{"/a", []string{"7"}, http.StatusNoContent},
		{"/a", []string{"6"}, http.StatusPreconditionFailed},
		{"/b", []string{"6"}, http.StatusNoContent},
		{"/a", []string{"eight"}, http.StatusBadRequest},
		{"/a", []string{""}, http.StatusBadRequest},
		{"/a", []string{"0"}, http.StatusBadRequest},
		{"/a", []string{"8", "9"}, http.StatusBadRequest},
		{"/a", []string{"8"}, http.StatusNoContent},
		{"/a", []string{"7"}, http.StatusPreconditionFailed},
	} {
		r := httptest.NewRequest(http.MethodPut, step.path, nil)
		for _, token := range step.tokens {
			r.Header.Add(fence.Header, token)
		}
		before, w := served, httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != step.want {
			t.Errorf("%s with %q: %d %s, want %d", step.path, step.tokens, w.Code, w.Body, step.want)
		}
		if passed := served > before; passed != (step.want == http.StatusNoContent) {
			t.Errorf("%s with %q: reached the handler: %v", step.path, step.tokens, passed)
		}
	}
}

func ExampleSetHeader() {
	r, _ := http.NewRequest(http.MethodPut, "http://127.0.0.1/accounts/7", http.NoBody)
	fence.SetHeader(r, 14092)
	fmt.Println(r.Header.Get("Fencing-Token"))
	// Output: 14092
}
