package auth

import "context"

// Identity is who sends a request. The zero Identity is nobody that is known.
type Identity struct {
	// User is the name that a token or a certificate gives.
	User string
	// Revision is that of the users and roles when the name was established.
	Revision uint64
	// Known is set for a sender with a token or a certificate.
	Known bool
	// Signed is set where Revision is part of the token, so that a new look at the
	// same token gives the same.
	Signed bool
	// server is set for the server itself.
	server bool
}

// Server is the identity of the server itself, which may do everything.
var Server = Identity{server: true}

type identityKey struct{}

// With returns a context under which requests are the identity's.
func With(ctx context.Context, id Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// From returns whose requests are made under ctx, nobody if With was not called.
func From(ctx context.Context) Identity {
	id, _ := ctx.Value(identityKey{}).(Identity)
	return id
}
