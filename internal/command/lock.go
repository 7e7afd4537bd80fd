package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"time"

	"github.com/latchkey-db/latchkey/client"
)

// tokenVariable is where the program that runs under a lock finds its fencing token.
const tokenVariable = "LATCHKEY_FENCING_TOKEN"

const lockUsage = `Usage: latchkey lock NAME [flags] -- COMMAND [ARGUMENT...]

Runs a command while it holds a lock, and ends as that does. The command finds the fencing
token in ` + tokenVariable + `. Where the lock can't be kept it gets SIGTERM, and SIGKILL before
the lease can have ended. Without a command the token is printed, and the lock held until a signal.
Exit codes: the command's; 75 if the lock was not free in time, or in a deadlock; 1 for other failures.

`

// lockFlags are those of the command lock.
type lockFlags struct {
	connection

	ttl, wait   time.Duration
	shared      bool
	permits, of int
	client      string
	name        string
	program     []string
}

// parseLock reads the arguments. The name may stand before flags or behind them.
func parseLock(args []string, s Streams) (*lockFlags, error) {
	f := new(lockFlags)
	set := flag.NewFlagSet("lock", flag.ContinueOnError)
	f.flags(set, s.Environ)
	set.DurationVar(&f.ttl, "ttl", 10*time.Second, "time to live of the lock's lease, in whole seconds")
	set.DurationVar(&f.wait, "wait", -1, "how long to wait for the lock; 0 for not at all, below for as long as it takes")
	set.BoolVar(&f.shared, "shared", false, "hold the lock with other shared holders")
	set.IntVar(&f.permits, "permits", 0, "permits of a semaphore to hold")
	set.IntVar(&f.of, "of", 0, "permits that the semaphore has")
	set.StringVar(&f.client, "client", "", "who asks, one thread of work; where clients wait for each other the youngest fails")
	own := args
	if at := slices.Index(args, "--"); at >= 0 {
		own, f.program = args[:at], args[at+1:]
	}
	names, err := parse(set, lockUsage, own, s)
	switch {
	case err != nil:
		return nil, err
	case len(names) == 0:
		return nil, fmt.Errorf("the lock has no name; %w", errUsage)
	case len(names) > 1:
		return nil, fmt.Errorf("%q is not expected; the command stands behind --; %w", names[1], errUsage)
	}
	f.name = names[0]
	if f.ttl < client.MinTTL {
		return nil, fmt.Errorf("--ttl is below %v; %w", client.MinTTL, errUsage)
	}
	return f, nil
}

func runLock(ctx context.Context, args []string, s Streams) (code int, err error) {
	f, err := parseLock(args, s)
	if err != nil {
		return 0, err
	}
	etcd, err := f.open()
	if err != nil {
		return 0, err
	}
	defer func() { _ = etcd.Close() }()
	session, err := f.openSession(ctx, client.New(etcd))
	if err != nil {
		return 0, err
	}
	defer func() {
		// Where no server answers the lease ends by itself.
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(f.commandTimeout, session.Left()))
		defer cancel()
		_ = session.Close(closing)
	}()
	grant, err := f.acquire(ctx, session)
	if errors.Is(err, client.ErrNotAcquired) || errors.Is(err, errNotInTime) || errors.As(err, new(*client.DeadlockError)) {
		return exitNotAcquired, err
	}
	if err != nil {
		return 0, err
	}
	if len(f.program) == 0 {
		_, _ = fmt.Fprintln(s.Out, grant.Token()) // nobody may listen
		select {
		case <-ctx.Done():
			return 0, nil
		case <-grant.Context().Done():
			return 0, grant.Lost()
		}
	}
	return runUnder(ctx, session, grant, f.program, s)
}

func (f *lockFlags) openSession(ctx context.Context, c *client.Client) (*client.Session, error) {
	ctx, cancel := f.bounded(ctx)
	defer cancel()
	session, err := c.Open(ctx, f.ttl)
	if err != nil && context.Cause(ctx) != nil {
		err = context.Cause(ctx)
	}
	return session, err
}

var errNotInTime = errors.New("the lock was not free in time")

func (f *lockFlags) acquire(ctx context.Context, session *client.Session) (*client.Grant, error) {
	opts := []client.Option{client.As(f.client)}
	if f.shared {
		opts = append(opts, client.Shared())
	}
	if f.permits != 0 || f.of != 0 {
		opts = append(opts, client.Permits(f.permits, f.of))
	}
	if f.wait == 0 {
		ctx, cancel := f.bounded(ctx)
		defer cancel()
		return session.TryAcquire(ctx, f.name, opts...)
	}
	if f.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, f.wait, errNotInTime)
		defer cancel()
	}
	return session.Acquire(ctx, f.name, opts...)
}
