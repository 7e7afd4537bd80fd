package fence

import (
	"errors"
	"math"
	"testing"
)

func TestParseToken(t *testing.T) {
	for _, tc := range []struct {
		s    string
		want Token
	}{
		{"1", 1}, {"14092", 14092}, {"9223372036854775807", math.MaxInt64},
	} {
		got, err := ParseToken(tc.s)
		if err != nil || got != tc.want || got.String() != tc.s {
			t.Errorf("%q: %d, %v", tc.s, got, err)
		}
	}
	for _, s := range []string{"", "0", "-1", "+1", " 1", "1 ", "1.5", "0x10", "ten", "9223372036854775808"} {
		if got, err := ParseToken(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %d, %v", s, got, err)
		}
	}
}
