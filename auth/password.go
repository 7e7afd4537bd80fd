package auth

import (
	"encoding/base64"
	"fmt"

	"golang.org/x/crypto/bcrypt"
)

// The bounds of what a hash may cost, and the cost that etcd takes without one.
const (
	MinCost     = bcrypt.MinCost
	MaxCost     = bcrypt.MaxCost
	DefaultCost = bcrypt.DefaultCost
)

// maxPassword is the length in bytes of the longest password that can be hashed.
const maxPassword = 72

// CheckPassword reports whether a password can be hashed, with the error that Hash
// gives otherwise.
func CheckPassword(password string) error {
	if len(password) > maxPassword {
		return bcrypt.ErrPasswordTooLong
	}
	return nil
}

// Hash returns the hash of a password in the text form that requests carry. It
// takes long, the longer the greater the cost.
func Hash(password string, cost int) (string, error) {
	if err := CheckPassword(password); err != nil {
		return "", err
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), cost)
	if err != nil {
		return "", fmt.Errorf("hash password: %w", err)
	}
	return base64.StdEncoding.EncodeToString(hash), nil
}

// Verify checks a user's password and returns the revision that it was right at. It
// takes long.
func (s *State) Verify(user, password string) (revision uint64, err error) {
	if !s.Enabled {
		return 0, ErrNotEnabled
	}
	u := s.Users[user]
	switch {
	case u == nil:
		return 0, ErrFailed
	case u.NoPassword:
		return 0, ErrNoPasswordUser
	case bcrypt.CompareHashAndPassword(u.Hash, []byte(password)) != nil:
		return 0, ErrFailed
	default:
		return s.Revision, nil
	}
}
