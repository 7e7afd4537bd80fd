package peer

import (
	"encoding/json"
	"testing"
)

// Two nodes speak the newest version that both do.
func TestCommonVersion(t *testing.T) {
	for _, tc := range []struct {
		a, b versions
		want int
	}{
		{versions{2, 2}, versions{2, 2}, 2},
		{versions{2, 2}, versions{2, 0}, 2},
		{versions{2, 2}, versions{3, 2}, 2},
		{versions{4, 2}, versions{3, 1}, 3},
		{versions{2, 2}, versions{3, 3}, 0},
		{versions{2, 2}, versions{3, 0}, 0},
		{versions{2, 2}, versions{1, 0}, 0},
		{versions{2, 2}, versions{0, 0}, 0},
	} {
		if got := tc.a.common(tc.b); got != tc.want {
			t.Errorf("%v and %v: %d, want %d", tc.a, tc.b, got, tc.want)
		}
		if got := tc.b.common(tc.a); got != tc.want {
			t.Errorf("%v and %v: %d, want %d", tc.b, tc.a, got, tc.want)
		}
	}
}

// An opening of a later version, with fields that this one does not know, is let pass if the
// versions meet.
func TestOpeningOfALaterVersion(t *testing.T) {
	n := start(t, nil)
	for text, pass := range map[string]bool{
		`{"protocol":3,"oldest":2,"node":1,"to":2,"news":{"a":[1]}}`: true,
		`{"protocol":2,"node":1,"to":2}`:                             true,
		`{"protocol":9,"oldest":3,"node":1,"to":2}`:                  false,
		`{"node":1,"to":2}`:                                          false,
	} {
		var o opening
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		if refused := n.meshes[2].judgeOpening(&o); (refused == nil) != pass {
			t.Errorf("%s: %+v", text, refused)
		}
	}
}
