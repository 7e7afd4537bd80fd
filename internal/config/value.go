package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"

	"github.com/latchkey-db/latchkey/internal/invariant"
)

// value is where a setting goes.
type value interface {
	// set takes the setting's text.
	set(s string) error
	// String returns the setting's text as set would take it.
	String() string
	// kind says how the setting may be written.
	kind() kind
}

type kind uint8

const (
	kindText kind = iota + 1
	// kindSwitch may stand on the command line without a value, for "true".
	kindSwitch
	// kindDuration is nanoseconds where a file gives a number.
	kindDuration
)

// scalar is a value of type T.
type scalar[T any] struct {
	p      *T
	parse  func(string) (T, error)
	format func(T) string
	k      kind
}

func (v *scalar[T]) set(s string) error {
	x, err := v.parse(s)
	if err != nil {
		return err
	}
	*v.p = x
	return nil
}

// String returns the setting's text.
func (v *scalar[T]) String() string { return v.format(*v.p) }

func (v *scalar[T]) kind() kind { return v.k }

func text(p *string) value {
	return &scalar[string]{p: p, parse: func(s string) (string, error) { return s, nil }, format: same, k: kindText}
}

func same(s string) string { return s }

func toggle(p *bool) value {
	return &scalar[bool]{p: p, parse: parseBool, format: strconv.FormatBool, k: kindSwitch}
}

func parseBool(s string) (bool, error) {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return false, errors.New("must be true or false")
	}
	return b, nil
}

type integer interface {
	~int | ~int64 | ~uint | ~uint32 | ~uint64
}

// number takes whole numbers from low to high, in Go's notations.
func number[T integer](p *T, low, high T) value {
	parse := func(s string) (T, error) {
		n, err := parseInteger[T](s)
		if err != nil || n < low || n > high {
			return 0, fmt.Errorf("must be a whole number from %d to %d", low, high)
		}
		return n, nil
	}
	return &scalar[T]{p: p, parse: parse, format: func(n T) string { return fmt.Sprint(n) }, k: kindText}
}

var errInteger = errors.New("not an integer of the type")

func parseInteger[T integer](s string) (T, error) {
	if n, err := strconv.ParseInt(s, 0, 64); err == nil {
		if t := T(n); int64(t) == n && (t < 0) == (n < 0) {
			return t, nil
		}
		return 0, errInteger
	}
	n, err := strconv.ParseUint(s, 0, 64)
	if t := T(n); err == nil && uint64(t) == n && t > 0 {
		return t, nil
	}
	return 0, errInteger
}

// duration takes durations that are not negative.
func duration(p *time.Duration) value {
	parse := func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 {
			return 0, errors.New("must be a duration such as 500ms, 10s or 2h")
		}
		return d, nil
	}
	return &scalar[time.Duration]{p: p, parse: parse, format: time.Duration.String, k: kindDuration}
}

// milliseconds takes a positive whole number of milliseconds.
func milliseconds(p *time.Duration) value {
	const most = 1 << 31
	parse := func(s string) (time.Duration, error) {
		n, err := strconv.ParseUint(s, 0, 64)
		if err != nil || n == 0 || n > most {
			return 0, errors.New("must be a positive whole number of milliseconds")
		}
		return time.Duration(n) * time.Millisecond, nil
	}
	format := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	return &scalar[time.Duration]{p: p, parse: parse, format: format, k: kindText}
}

// seconds takes whole seconds.
func seconds(p *time.Duration) value {
	const most = 1 << 31
	parse := func(s string) (time.Duration, error) {
		n, err := strconv.ParseUint(s, 0, 64)
		if err != nil || n > most {
			return 0, errors.New("must be a whole number of seconds")
		}
		return time.Duration(n) * time.Second, nil
	}
	format := func(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second), 10) }
	return &scalar[time.Duration]{p: p, parse: parse, format: format, k: kindText}
}

// choice takes one of the given words.
func choice[T ~string](p *T, words ...T) value {
	parse := func(s string) (T, error) {
		if !slices.Contains(words, T(s)) {
			quoted := make([]string, len(words))
			for i, w := range words {
				quoted[i] = strconv.Quote(string(w))
			}
			return "", errors.New("must be " + strings.Join(quoted, " or "))
		}
		return T(s), nil
	}
	return &scalar[T]{p: p, parse: parse, format: func(t T) string { return string(t) }, k: kindText}
}

// words takes words separated by commas, also none.
func words(p *[]string) value {
	v := listOf(p)
	parse := v.parse
	v.parse = func(s string) ([]string, error) {
		if s == "" {
			return nil, nil
		}
		return parse(s)
	}
	return v
}

// origins takes URLs separated by commas, or "*", or nothing.
func origins(p *[]string) value {
	parse := func(s string) ([]string, error) {
		if s == "" || s == "*" {
			return []string{"*"}, nil
		}
		all, err := parseURLs(s)
		return all.StringSlice(), err
	}
	format := func(w []string) string { return strings.Join(w, ",") }
	return &scalar[[]string]{p: p, parse: parse, format: format, k: kindText}
}

// list takes words separated by commas, at least one.
func list(p *[]string) value { return listOf(p) }

func listOf(p *[]string) *scalar[[]string] {
	parse := func(s string) ([]string, error) {
		var words []string
		for w := range strings.SplitSeq(s, ",") {
			if w == "" {
				return nil, errors.New("must be words separated by commas")
			}
			if !slices.Contains(words, w) {
				words = append(words, w)
			}
		}
		return words, nil
	}
	return &scalar[[]string]{p: p, parse: parse, format: func(w []string) string { return strings.Join(w, ",") }, k: kindText}
}

// urls takes URLs separated by commas; none at all where the text is empty.
func urls(p *types.URLs) value {
	parse := func(s string) (types.URLs, error) {
		if s == "" {
			return nil, nil
		}
		return parseURLs(s)
	}
	return &scalar[types.URLs]{p: p, parse: parse, format: types.URLs.String, k: kindText}
}

func parseURLs(s string) (types.URLs, error) {
	all, err := types.NewURLs(strings.Split(s, ","))
	if err != nil {
		return nil, fmt.Errorf("must be URLs such as http://127.0.0.1:2379: %w", err)
	}
	return slices.CompactFunc(all, func(a, b url.URL) bool { return a.String() == b.String() }), nil
}

func mustURLs(s string) types.URLs {
	u, err := parseURLs(s)
	if err != nil {
		invariant.Violated("URL %s of this package: %v", s, err)
	}
	return u
}

// level takes etcd's names of log levels. Those above "error" log errors alone,
// too.
func level(p *slog.Level) value {
	names := []struct {
		name  string
		level slog.Level
	}{
		{"debug", slog.LevelDebug},
		{"info", slog.LevelInfo},
		{"warn", slog.LevelWarn},
		{"error", slog.LevelError},
		{"dpanic", slog.LevelError},
		{"panic", slog.LevelError},
		{"fatal", slog.LevelError},
	}
	parse := func(s string) (slog.Level, error) {
		for _, n := range names {
			if n.name == s {
				return n.level, nil
			}
		}
		return 0, errors.New("must be debug, info, warn, error, panic or fatal")
	}
	format := func(l slog.Level) string {
		for _, n := range names {
			if n.level == l {
				return n.name
			}
		}
		return l.String()
	}
	return &scalar[slog.Level]{p: p, parse: parse, format: format, k: kindText}
}

// The values of settings that do nothing are checked like others, but nobody
// reads them.

func unreadText(s string) value               { return text(&s) }
func unreadToggle(b bool) value               { return toggle(&b) }
func unreadDuration(d time.Duration) value    { return duration(&d) }
func unreadNumber[T integer](n, high T) value { return number(&n, 0, high) }

func unreadChoice(words ...string) value {
	chosen := words[0]
	return choice(&chosen, words...)
}

// anything is a setting of which nothing is known but that it exists.
type anything struct{ text string }

func (v *anything) set(s string) error {
	v.text = s
	if s == "false" {
		v.text = ""
	}
	return nil
}

// String returns the setting's text, empty for what asks for nothing.
func (v *anything) String() string { return v.text }

func (*anything) kind() kind { return kindSwitch }
