package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/router"
)

// gatewayHeader is what the gateway marks its calls with. Their connection shows
// the gateway's own certificate, which says nothing of who asks.
const gatewayHeader = "grpcgateway-accept"

// maxChecks bounds how often a call is checked anew because users or roles changed
// under it. Behind that the client hears of it, and may try again.
const maxChecks = 4

// gate finds out who calls, and sees to it that a call is done for its caller.
type gate struct {
	users  Users
	tokens auth.Tokens
	// certificates is set where the common name of a client's certificate is a
	// user's name.
	certificates bool
	log          *slog.Logger
}

// need is what a call asks of its caller before it is looked at.
type need func(*auth.State, auth.Identity) error

// What calls need. Calls on keys are open to anyone, since the store checks the
// rights to them.
var (
	needNothing need
	needUser    need = (*auth.State).Member
	needRoot    need = (*auth.State).Admin
)

// identify returns who calls, and the users and roles in force.
func (g *gate) identify(ctx context.Context) (*auth.State, auth.Identity, error) {
	users, err := g.users.Users(ctx)
	if err != nil || !users.Enabled {
		return users, auth.Identity{}, err
	}
	if token, ok := tokenOf(ctx); ok {
		id, ok := g.tokens.Identify(token, users.Revision)
		if !ok {
			g.log.LogAttrs(ctx, slog.LevelDebug, "a token is not valid", slog.String("token_hash", fingerprint(token)))
			return users, id, auth.ErrInvalidToken
		}
		return users, id, nil
	}
	if g.certificates {
		if name, ok := commonName(ctx); ok {
			return users, auth.Identity{User: name, Revision: users.Revision, Known: true}, nil
		}
	}
	return users, auth.Identity{}, nil
}

// tokenOf returns the token that a call carries.
func tokenOf(ctx context.Context) (token string, ok bool) {
	for _, field := range []string{rpctypes.TokenFieldNameGRPC, rpctypes.TokenFieldNameSwagger} {
		if values := metadata.ValueFromIncomingContext(ctx, field); len(values) > 0 {
			return strings.TrimPrefix(values[0], "Bearer "), true
		}
	}
	return "", false
}

// fingerprint tells tokens apart in the log, where they must not be.
func fingerprint(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:6])
}

// commonName returns the name in the verified certificate of the caller's
// connection.
func commonName(ctx context.Context) (name string, ok bool) {
	if len(metadata.ValueFromIncomingContext(ctx, gatewayHeader)) > 0 {
		return "", false
	}
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return "", false
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return "", false
	}
	for _, chain := range info.State.VerifiedChains {
		if len(chain) > 0 {
			return chain[0].Subject.CommonName, true
		}
	}
	return "", false
}

// require checks a call that is not about keys.
func (g *gate) require(ctx context.Context, needs need) error {
	users, id, err := g.identify(ctx)
	if err == nil {
		err = needs(users, id)
	}
	return toStatus(err)
}

// refuseWatch returns why the caller may not watch a range, in etcd's form, or
// nothing.
func (g *gate) refuseWatch(ctx context.Context, key, end []byte) (reason string, err error) {
	users, id, err := g.identify(ctx)
	if err == nil {
		err = users.Read(id, key, end)
	}
	switch {
	case err == nil:
		return "", nil
	case errors.Is(err, auth.ErrInvalidToken), errors.Is(err, auth.ErrOldRevision),
		errors.Is(err, auth.ErrUserEmpty), errors.Is(err, auth.ErrPermissionDenied):
		return toStatus(err).Error(), nil
	default:
		return "", toStatus(err)
	}
}

// checked does a call for its caller. Where the caller's rights changed while it was
// under way nothing was done, and the call is made again, as if it had come later.
func checked[Response any](
	ctx context.Context, g *gate, needs need, call func(context.Context) (Response, error),
) (resp Response, err error) {
	if err := ctx.Err(); err != nil {
		return resp, err
	}
	for attempt := 1; ; attempt++ {
		users, id, err := g.identify(ctx)
		if err == nil && needs != nil {
			err = needs(users, id)
		}
		if err != nil {
			return resp, toStatus(err)
		}
		resp, err = call(auth.With(ctx, id))
		if attempt == maxChecks || !outdated(id, err) {
			return resp, toStatus(err)
		}
	}
}

// outdated tells whether another check may come to another result.
func outdated(id auth.Identity, err error) bool {
	return errors.Is(err, router.ErrOutdated) || errors.Is(err, auth.ErrOldRevision) && !id.Signed
}
