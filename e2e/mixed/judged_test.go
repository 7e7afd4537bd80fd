package mixed

import (
	"strings"
	"testing"
	"time"
)

// at returns a moment, in milliseconds.
func at(ms int) time.Time { return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond) }

// one returns a hold of the lock "l".
func one(token int64, asked, told, until int) hold {
	return hold{lock: "l", token: token, asked: at(asked), told: at(told), until: at(until)}
}

func as(m mode, h hold) hold {
	h.mode = m
	return h
}

func seen(sent, got int, places ...int64) look {
	return look{lock: "l", sent: at(sent), got: at(got), places: places}
}

// The judge finds what must not be, and nothing in what may.
func TestJudge(t *testing.T) {
	shared, two := mode{shared: true}, mode{permits: 2, of: 3}
	for _, c := range []struct {
		name  string
		holds []hold
		looks []look
		// want is in the one violation, empty for none.
		want string
	}{
		{"nothing", nil, nil, ""},
		{"turns", []hold{one(5, 0, 1, 4), one(6, 2, 4, 9)}, []look{seen(2, 3, 5, 6)}, ""},
		{"two holders", []hold{one(5, 0, 1, 4), one(6, 2, 3, 9)}, nil, "told too early"},
		{"two holders, one for long", []hold{one(5, 0, 1, 20), one(6, 2, 20, 21), one(7, 2, 19, 19)}, nil, "told too early"},
		{"the younger is told first", []hold{one(6, 0, 1, 4), one(5, 2, 6, 9)}, nil, "told too early"},
		{"what may have ended when it was told of", []hold{one(5, 0, 5, 4), one(6, 0, 3, 9)}, nil, ""},
		{"told while the other holds, and its lease may have ended", []hold{one(5, 0, 1, 4), one(6, 0, 3, 2)}, nil, "told too early"},
		{"the same token", []hold{one(5, 0, 1, 2), one(5, 3, 4, 5)}, nil, "the same token twice"},
		{"no token", []hold{one(0, 0, 1, 2)}, nil, "no token"},
		{"readers", []hold{as(shared, one(5, 0, 1, 9)), as(shared, one(6, 0, 2, 8))}, nil, ""},
		{"a writer beside a reader", []hold{as(shared, one(5, 0, 1, 9)), one(6, 0, 2, 8)}, nil, "told too early"},
		{"a reader beside a writer", []hold{one(5, 0, 1, 9), as(shared, one(6, 0, 2, 8))}, nil, "told too early"},
		{
			"a reader passes a writer that waits",
			[]hold{as(shared, one(5, 0, 1, 9)), one(6, 0, 9, 10), as(shared, one(7, 0, 2, 3))},
			nil, "told too early",
		},
		{"permits", []hold{as(two, one(5, 0, 1, 9)), as(mode{permits: 1, of: 3}, one(6, 0, 2, 8))}, nil, ""},
		{"permits one after the other", []hold{as(two, one(5, 0, 1, 4)), as(two, one(6, 0, 4, 8))}, nil, ""},
		{"too many permits", []hold{as(two, one(5, 0, 1, 9)), as(two, one(6, 0, 2, 8))}, nil, "4 permits at once"},
		{"permits of another number", []hold{as(two, one(5, 0, 1, 9)), as(mode{permits: 1, of: 4}, one(6, 0, 2, 8))}, nil, "told too early"},
		{"a reader beside permits", []hold{as(two, one(5, 0, 1, 9)), as(shared, one(6, 0, 2, 8))}, nil, "told too early"},
		{"asked behind a place", []hold{one(6, 4, 5, 6)}, []look{seen(1, 3, 5)}, ""},
		{"asked when a place was being looked for", []hold{one(4, 2, 3, 4)}, []look{seen(1, 3, 4, 5)}, ""},
		{"asked behind a place, and came before it", []hold{one(4, 4, 5, 6)}, []look{seen(1, 3, 5), seen(3, 4, 4)}, "came before the place 5"},
		{"its place is there", []hold{one(5, 0, 1, 9)}, []look{seen(2, 3, 5, 6), seen(8, 10)}, ""},
		{"its place is gone", []hold{one(5, 0, 1, 9)}, []look{seen(2, 3, 6)}, "and not"},
		{"its place is gone when its lease may have ended", []hold{one(5, 0, 1, 1)}, []look{seen(2, 3, 6)}, ""},
		{"passed one that waits", []hold{one(6, 0, 2, 3)}, []look{seen(3, 4, 5, 6)}, "there were still [5 6]"},
		{"passed one that waits, by itself not there any more", []hold{one(6, 0, 2, 1)}, []look{seen(3, 4), seen(5, 6, 5)}, "there were still [5]"},
		{"a reader behind a reader", []hold{as(shared, one(6, 0, 2, 3))}, []look{seen(3, 4, 5, 6)}, ""},
		{"seen before it was told", []hold{one(6, 0, 2, 3)}, []look{seen(1, 3, 5, 6)}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := judge(&history{holds: c.holds, looks: c.looks})
			switch {
			case c.want == "" && len(found) > 0:
				t.Errorf("found %q", found)
			case c.want != "" && (len(found) != 1 || !strings.Contains(found[0], c.want)):
				t.Errorf("found %q, want %q", found, c.want)
			}
		})
	}
	// Locks have nothing to do with each other.
	other := one(6, 2, 3, 9)
	other.lock = "m"
	if found := judge(&history{holds: []hold{one(5, 0, 1, 4), other}}); len(found) > 0 {
		t.Errorf("of two locks: %q", found)
	}
	h := &history{}
	h.wrong("lease %d", 1)
	if found := judge(h); len(found) != 1 || found[0] != "lease 1" {
		t.Errorf("found %q", found)
	}
}
