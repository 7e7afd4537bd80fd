package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/raft"
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
type need struct {
	// holds is nil where nothing is asked.
	holds func(*auth.State, auth.Identity) error
	// newest is set where that is asked of the newest users and roles, which takes a leader
	// where requests are checked.
	newest bool
}

// What calls need. Calls on keys are open to anyone, since the store checks the
// rights to them.
var (
	needNothing = need{}
	needUser    = need{holds: (*auth.State).Member}
	needRoot    = need{holds: (*auth.State).Admin, newest: true}
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

// require checks a call that is not about keys. What only root may do is checked against
// users and roles that are proved to be the newest; without a leader, where nothing can be
// proved, against those that this node knows, unless it knows that there are newer ones.
func (g *gate) require(ctx context.Context, needs need) error {
	_, err := g.required(ctx, needs)
	return err
}

// required is require. recheck checks again that what was checked holds: what was read before
// it is the caller's to hear.
func (g *gate) required(ctx context.Context, needs need) (recheck func() error, err error) {
	users, id, err := g.identify(ctx)
	if err == nil {
		err = needs.holds(users, id)
	}
	if err != nil {
		return nil, toStatus(err)
	}
	recheck = func() error {
		if !needs.newest {
			return nil
		}
		if err := g.prove(ctx, users, needs.holds); !errors.Is(err, errUnproved) {
			return toStatus(err)
		}
		return nil
	}
	return recheck, recheck()
}

// errUnproved says that nothing tells against users, and that nobody was there to prove them.
var errUnproved = errors.New("users and roles are not proved to be the newest")

// prove checks a call again that users let pass, until they are proved to be the newest.
func (g *gate) prove(ctx context.Context, users *auth.State, holds func(*auth.State, auth.Identity) error) error {
	for attempt := 1; ; attempt++ {
		err := g.users.ProveUsers(ctx, users)
		if errors.Is(err, raft.ErrTimeout) {
			return fmt.Errorf("%w: %w", errUnproved, err)
		}
		if !errors.Is(err, router.ErrOutdated) || attempt == maxChecks {
			return err
		}
		if err := g.catchUp(ctx, err); err != nil {
			return err
		}
		now, id, err := g.identify(ctx)
		if err == nil {
			err = holds(now, id)
		}
		if err != nil {
			return err
		}
		users = now
	}
}

// catchUp waits until this node has the users and roles for which a call was outdated.
func (g *gate) catchUp(ctx context.Context, err error) error {
	if !errors.Is(err, router.ErrOutdated) {
		return nil
	}
	_, err = g.users.ConfirmUsers(ctx)
	return err
}

// atOnce tells whether it is known without asking anyone who may watch what: where requests
// are not checked.
func (g *gate) atOnce(ctx context.Context) bool {
	users, err := g.users.Users(ctx)
	return err == nil && !users.Enabled && g.users.ProveUsers(ctx, users) == nil
}

// refuseWatch returns why the caller may not watch a range, in etcd's form, or
// nothing. No right passes that was taken away before: the watch would keep it for good.
func (g *gate) refuseWatch(ctx context.Context, key, end []byte) (reason string, err error) {
	mayRead := func(users *auth.State, id auth.Identity) error { return users.Read(id, key, end) }
	users, id, err := g.identify(ctx)
	if err == nil {
		err = mayRead(users, id)
	}
	if err == nil {
		err = g.prove(ctx, users, mayRead)
	}
	switch {
	case err == nil:
		return "", nil
	case errors.Is(err, auth.ErrInvalidToken), errors.Is(err, auth.ErrOldRevision), errors.Is(err, router.ErrOutdated),
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
		if err == nil && needs.holds != nil {
			err = needs.holds(users, id)
		}
		if err == nil && needs.newest {
			err = g.prove(ctx, users, needs.holds)
		}
		if err != nil {
			return resp, toStatus(err)
		}
		resp, err = call(auth.With(ctx, id))
		if attempt == maxChecks || !outdated(id, err) {
			return resp, toStatus(err)
		}
		if err := g.catchUp(ctx, err); err != nil {
			return resp, toStatus(err)
		}
	}
}

// outdated tells whether another check may come to another result.
func outdated(id auth.Identity, err error) bool {
	return errors.Is(err, router.ErrOutdated) || errors.Is(err, auth.ErrOldRevision) && !id.Signed
}
