package fence

import (
	"errors"
	"fmt"
	"strconv"
)

// Token is the fencing token of a grant: the create revision of the holder's key. Tokens of
// one lock grow from grant to grant; those of different locks have nothing to do with each
// other. It is positive.
type Token int64

var (
	// ErrStale is matched by the errors for tokens that are lower than one seen before.
	ErrStale = errors.New("fence: the token is stale")
	// ErrInvalid is returned for tokens that no grant has: those that are not positive, or
	// no number.
	ErrInvalid = errors.New("fence: not a fencing token")
)

// StaleError says that a token is lower than one that the resource has seen.
type StaleError struct {
	Resource string
	// Token is the one that was refused, Newest the highest seen.
	Token, Newest Token
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("%v: %s has seen %d, this is %d", ErrStale, strconv.Quote(e.Resource), e.Newest, e.Token)
}

// Is reports whether target is ErrStale.
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// String returns the token in decimal, as headers and environments carry it.
func (t Token) String() string { return strconv.FormatInt(int64(t), 10) }

// Valid returns ErrInvalid for a token that no grant has.
func (t Token) Valid() error {
	if t <= 0 {
		return fmt.Errorf("%w: %d is not positive", ErrInvalid, t)
	}
	return nil
}

// ParseToken reads what String wrote. Errors are ErrInvalid.
func ParseToken(s string) (Token, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || s[0] == '+' {
		return 0, fmt.Errorf("%w: %s", ErrInvalid, strconv.Quote(s))
	}
	t := Token(n)
	return t, t.Valid()
}
