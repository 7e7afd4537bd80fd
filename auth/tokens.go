package auth

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Sessions hears of what the log says about simple tokens, in the log's order. An end may
// be told more than once: the first time before the state that it follows from is
// published.
type Sessions interface {
	// Begin makes a token a user's. The state that it follows from has been published.
	Begin(token, user string)
	// End voids the tokens of a user.
	End(user string)
	// EndAll voids all tokens. That is also told where the log was passed over, since some
	// may have ended there.
	EndAll()
}

// Login has a token made of prefix by the log, for a user whose password was right,
// so that all nodes know it.
type Login func(ctx context.Context, user, prefix string) (token string, err error)

// Tokens issues tokens and tells whose they are. Its methods may be called from any
// goroutine.
type Tokens interface {
	Sessions

	// Issue returns a token for a user whose password was right at revision.
	Issue(ctx context.Context, user string, revision uint64, login Login) (token string, err error)
	// Identify returns whose token it is. Where the token itself does not say at
	// which revision it was issued, that is revision.
	Identify(token string, revision uint64) (id Identity, ok bool)
}

// NewTokens returns the tokens that a description in etcd's form asks for: "simple",
// with tokens that last for ttl since their last use, or "jwt" with its options.
// The empty description stands for no tokens. Errors wrap ErrOptions. ignored are
// options that there are not.
func NewTokens(description string, ttl time.Duration) (t Tokens, ignored []string, err error) {
	kind, options, err := parseOptions(description)
	if err != nil {
		return nil, nil, err
	}
	switch kind {
	case "":
		return none{}, nil, nil
	case "simple":
		return NewSimple(ttl), nil, nil
	case "jwt":
		return newSigned(options)
	default:
		return nil, nil, fmt.Errorf("%w: no tokens of type %q", ErrOptions, kind)
	}
}

// parseOptions takes "kind,name=value,..." apart.
func parseOptions(description string) (kind string, options map[string]string, err error) {
	kind, rest, more := strings.Cut(description, ",")
	options = make(map[string]string)
	for more {
		var pair string
		pair, rest, more = strings.Cut(rest, ",")
		name, value, ok := strings.Cut(pair, "=")
		if !ok || strings.Contains(value, "=") {
			return "", nil, fmt.Errorf("%w: %q is not name=value", ErrOptions, pair)
		}
		if _, twice := options[name]; twice {
			return "", nil, fmt.Errorf("%w: %q is there twice", ErrOptions, name)
		}
		options[name] = value
	}
	return kind, options, nil
}

// none issues no tokens, so that only certificates identify users.
type none struct{}

// Issue refuses.
func (none) Issue(context.Context, string, uint64, Login) (string, error) { return "", ErrFailed }

// Identify knows no token.
func (none) Identify(string, uint64) (Identity, bool) { return Identity{}, false }

// Begin does nothing.
func (none) Begin(string, string) {}

// End does nothing.
func (none) End(string) {}

// EndAll does nothing.
func (none) EndAll() {}
