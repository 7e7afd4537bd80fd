package auth

import (
	"context"
	"crypto/rand"
	"sync"
	"time"
)

// DefaultTokenTTL is how long simple tokens last since their last use where nothing
// else is said.
const DefaultTokenTTL = 5 * time.Minute

const (
	tokenLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	tokenLength  = 16
)

// Simple issues tokens that mean nothing by themselves: letters drawn at random, a
// dot and a number. They are kept in memory alone and void after a restart.
type Simple struct {
	ttl time.Duration

	mu sync.Mutex
	// sessions are the tokens, by their text; protected by mu, like what follows.
	// Some may have expired.
	sessions map[string]*session
	// swept is when expired tokens were removed last.
	swept time.Time
}

// session is one token.
type session struct {
	user string
	// until is when it expires.
	until time.Time
}

var _ Tokens = (*Simple)(nil)

// NewSimple returns simple tokens that last for ttl since their last use, for the
// default time if that is not positive.
func NewSimple(ttl time.Duration) *Simple {
	if ttl <= 0 {
		ttl = DefaultTokenTTL
	}
	return &Simple{ttl: ttl, sessions: make(map[string]*session)}
}

// Issue draws a token and has it logged.
func (t *Simple) Issue(ctx context.Context, user string, _ uint64, login Login) (string, error) {
	return login(ctx, user, drawPrefix())
}

// drawPrefix returns the letters of a token. All are equally likely.
func drawPrefix() string {
	const fair = 256 - 256%len(tokenLetters)
	prefix := make([]byte, 0, tokenLength)
	for len(prefix) < tokenLength {
		var drawn [2 * tokenLength]byte
		_, _ = rand.Read(drawn[:]) // never fails: it ends the process instead
		for _, b := range drawn {
			if int(b) < fair && len(prefix) < tokenLength {
				prefix = append(prefix, tokenLetters[int(b)%len(tokenLetters)])
			}
		}
	}
	return string(prefix)
}

// Identify returns whose token it is, and lets it last from now on.
func (t *Simple) Identify(token string, revision uint64) (Identity, bool) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.sessions[token]
	if s == nil || now.After(s.until) {
		return Identity{}, false
	}
	s.until = now.Add(t.ttl)
	return Identity{User: s.user, Revision: revision, Known: true}, true
}

// Begin takes over a token, and forgets those that have expired.
func (t *Simple) Begin(token, user string) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sessions[token] = &session{user: user, until: now.Add(t.ttl)}
	if now.Sub(t.swept) < t.ttl {
		return
	}
	t.swept = now
	for text, s := range t.sessions {
		if now.After(s.until) {
			delete(t.sessions, text)
		}
	}
}

// End forgets the tokens of a user.
func (t *Simple) End(user string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for text, s := range t.sessions {
		if s.user == user {
			delete(t.sessions, text)
		}
	}
}

// EndAll forgets all tokens.
func (t *Simple) EndAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.sessions)
}
