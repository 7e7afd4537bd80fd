package auth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// The options of signed tokens.
const (
	optionMethod  = "sign-method"
	optionPublic  = "pub-key"
	optionPrivate = "priv-key"
	optionTTL     = "ttl"
)

// signed issues JSON web tokens, which say by themselves whose they are, at which
// revision they were issued and until when they last. They outlive restarts.
type signed struct {
	none

	method jwt.SigningMethod
	// sign is the key that tokens are signed with, nil where they are only
	// verified; verify the one that they are verified with.
	sign, verify any
	ttl          time.Duration
}

var _ Tokens = (*signed)(nil)

// newSigned reads the options and the keys that they name.
func newSigned(options map[string]string) (t Tokens, ignored []string, err error) {
	s := &signed{ttl: DefaultTokenTTL}
	if text := options[optionTTL]; text != "" {
		if s.ttl, err = time.ParseDuration(text); err != nil {
			return nil, nil, fmt.Errorf("%w: %s: %w", ErrOptions, optionTTL, err)
		}
	}
	if s.method = jwt.GetSigningMethod(options[optionMethod]); s.method == nil {
		return nil, nil, fmt.Errorf("%w: no %s %q", ErrOptions, optionMethod, options[optionMethod])
	}
	public, err := readKey(options, optionPublic)
	if err != nil {
		return nil, nil, err
	}
	private, err := readKey(options, optionPrivate)
	if err != nil {
		return nil, nil, err
	}
	if err := s.setKeys(public, private); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if !slices.Contains([]string{optionMethod, optionPublic, optionPrivate, optionTTL}, name) {
			ignored = append(ignored, name)
		}
	}
	return s, ignored, nil
}

func readKey(options map[string]string, name string) ([]byte, error) {
	if options[name] == "" {
		return nil, nil
	}
	text, err := os.ReadFile(options[name])
	if err != nil {
		return nil, fmt.Errorf("%w: read %s: %w", ErrOptions, name, err)
	}
	return text, nil
}

var (
	errNoKey       = errors.New("key is missing")
	errKeyMismatch = errors.New("public and private key do not belong together")
	errMethod      = errors.New("signing method is not supported")
)

// setKeys reads the keys as the method needs them. A public key alone can verify
// tokens that others issue.
func (s *signed) setKeys(public, private []byte) error {
	switch s.method.(type) {
	case *jwt.SigningMethodHMAC:
		if len(private) == 0 {
			return errNoKey
		}
		s.sign, s.verify = private, private
		return nil
	case *jwt.SigningMethodRSA, *jwt.SigningMethodRSAPSS:
		return setPair(s, public, private, jwt.ParseRSAPublicKeyFromPEM, jwt.ParseRSAPrivateKeyFromPEM)
	case *jwt.SigningMethodECDSA:
		return setPair(s, public, private, jwt.ParseECPublicKeyFromPEM, jwt.ParseECPrivateKeyFromPEM)
	case *jwt.SigningMethodEd25519:
		return setPair(s, public, private, parseEdPublic, parseEdPrivate)
	default:
		return errMethod
	}
}

func parseEdPublic(text []byte) (ed25519.PublicKey, error) {
	key, err := jwt.ParseEdPublicKeyFromPEM(text)
	if err != nil {
		return nil, err
	}
	public, ok := key.(ed25519.PublicKey)
	if !ok {
		return nil, jwt.ErrNotEdPublicKey
	}
	return public, nil
}

func parseEdPrivate(text []byte) (ed25519.PrivateKey, error) {
	key, err := jwt.ParseEdPrivateKeyFromPEM(text)
	if err != nil {
		return nil, err
	}
	private, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, jwt.ErrNotEdPrivateKey
	}
	return private, nil
}

type publicKey interface {
	*rsa.PublicKey | *ecdsa.PublicKey | ed25519.PublicKey
	Equal(crypto.PublicKey) bool
}

type privateKey interface {
	*rsa.PrivateKey | *ecdsa.PrivateKey | ed25519.PrivateKey
	Public() crypto.PublicKey
}

// setPair reads a pair of keys, of which one may be missing.
func setPair[Public publicKey, Private privateKey](
	s *signed, public, private []byte, parsePublic func([]byte) (Public, error), parsePrivate func([]byte) (Private, error),
) error {
	if len(private) > 0 {
		key, err := parsePrivate(private)
		if err != nil {
			return err
		}
		s.sign, s.verify = key, key.Public()
	}
	if len(public) == 0 {
		if s.verify == nil {
			return errNoKey
		}
		return nil
	}
	key, err := parsePublic(public)
	if err != nil {
		return err
	}
	if s.verify != nil && !key.Equal(s.verify) {
		return errKeyMismatch
	}
	s.verify = key
	return nil
}

// Issue signs a token.
func (s *signed) Issue(_ context.Context, user string, revision uint64, _ Login) (string, error) {
	if s.sign == nil {
		return "", ErrVerifyOnly
	}
	token := jwt.NewWithClaims(s.method, jwt.MapClaims{
		"username": user,
		"revision": revision,
		"exp":      time.Now().Add(s.ttl).Unix(),
	})
	return token.SignedString(s.sign)
}

// Identify verifies a token.
func (s *signed) Identify(token string, _ uint64) (Identity, bool) {
	claims := jwt.MapClaims{}
	_, err := jwt.ParseWithClaims(token, claims, func(*jwt.Token) (any, error) { return s.verify, nil },
		jwt.WithValidMethods([]string{s.method.Alg()}))
	if err != nil {
		return Identity{}, false
	}
	user, named := claims["username"].(string)
	revision, dated := claims["revision"].(float64)
	if !named || !dated {
		return Identity{}, false
	}
	return Identity{User: user, Revision: uint64(revision), Known: true, Signed: true}, true
}
