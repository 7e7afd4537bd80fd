package command

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"google.golang.org/grpc/status"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
)

const locksUsage = `Usage:
  latchkey locks ls [PREFIX] [flags]              locks that somebody has, and how many wait
  latchkey locks show NAME [flags]                who has a lock and who waits, in order
  latchkey locks watch NAME [flags]               what happens to a lock, until a signal
  latchkey locks force-release NAME TOKEN [flags] takes a lock from its holder, or a place from who waits

`

// locksCall is a call of the lock service, with the arguments behind its name.
type locksCall struct {
	// least and most bound the arguments.
	least, most int
	// long says that the call goes on until it is ended.
	long bool
	run  func(ctx context.Context, locks latchkeyv1.LocksClient, f *locksFlags, p *printer) error
}

var locksCalls = map[string]locksCall{
	"ls":            {0, 1, false, listLocks},
	"show":          {1, 1, false, showLock},
	"watch":         {1, 1, true, watchLock},
	"force-release": {2, 2, false, forceRelease},
}

// locksFlags are those of the command locks.
type locksFlags struct {
	connection

	args      []string
	json      bool
	byWaiters bool
	from      int64
	reason    string
}

func runLocks(ctx context.Context, args []string, s Streams) (int, error) {
	f := new(locksFlags)
	set := flag.NewFlagSet("locks", flag.ContinueOnError)
	f.flags(set, s.Environ)
	set.BoolVar(&f.json, "json", false, "print JSON, a line for each lock or event")
	set.BoolVar(&f.byWaiters, "by-waiters", false, "ls: those that most wait for first, in each page")
	set.Int64Var(&f.from, "from", 0, "watch: the first revision that is told of")
	set.StringVar(&f.reason, "reason", "", "force-release: what watchers are told")
	var err error
	if f.args, err = parse(set, locksUsage, args, s); err != nil {
		return 0, err
	}
	if len(f.args) == 0 {
		return 0, fmt.Errorf("no command; %w", errUsage)
	}
	call, ok := locksCalls[f.args[0]]
	f.args = f.args[1:]
	if !ok || len(f.args) < call.least || len(f.args) > call.most {
		return 0, fmt.Errorf("the arguments are not those of a command; %w", errUsage)
	}
	etcd, err := f.open()
	if err != nil {
		return 0, err
	}
	defer func() { _ = etcd.Close() }()
	p := newPrinter(s.Out, f.json)
	if !call.long {
		var cancel context.CancelFunc
		ctx, cancel = f.bounded(ctx)
		defer cancel()
	}
	err = call.run(ctx, latchkeyv1.NewLocksClient(etcd.ActiveConnection()), f, p)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	} else if told, ok := status.FromError(err); ok && err != nil {
		err = errors.New(told.Message())
	}
	return 0, errors.Join(err, p.flush())
}

// pageSize is how many locks are asked for at a time.
const pageSize = 1000

func listLocks(ctx context.Context, locks latchkeyv1.LocksClient, f *locksFlags, p *printer) error {
	r := &latchkeyv1.ListRequest{Limit: pageSize, ByWaiters: f.byWaiters}
	if len(f.args) > 0 {
		r.Prefix = f.args[0]
	}
	p.columns("LOCK", "HOLDERS", "TOKEN", "WAITERS")
	for {
		page, err := locks.List(ctx, r)
		if err != nil {
			return err
		}
		for _, l := range page.Locks {
			p.summary(l)
		}
		if r.Cursor = page.Cursor; r.Cursor == "" {
			return nil
		}
	}
}

func showLock(ctx context.Context, locks latchkeyv1.LocksClient, f *locksFlags, p *printer) error {
	l, err := locks.Get(ctx, &latchkeyv1.GetRequest{LockKey: f.args[0]})
	if err != nil {
		return err
	}
	p.lock(l)
	return nil
}

func watchLock(ctx context.Context, locks latchkeyv1.LocksClient, f *locksFlags, p *printer) error {
	stream, err := locks.Watch(ctx, &latchkeyv1.WatchRequest{LockKey: f.args[0], FromRevision: f.from})
	if err != nil {
		return err
	}
	p.columns("REVISION", "EVENT", "TOKEN", "CLIENT", "REASON")
	for {
		e, err := stream.Recv()
		if ctx.Err() != nil {
			return nil //nolint:nilerr // a signal ends the watch as it should
		}
		if err != nil {
			return err
		}
		for _, event := range e.Events {
			p.event(e.Revision, event)
		}
		if err := p.flush(); err != nil {
			return err
		}
	}
}

func forceRelease(ctx context.Context, locks latchkeyv1.LocksClient, f *locksFlags, _ *printer) error {
	var token int64
	if _, err := fmt.Sscanf(f.args[1], "%d", &token); err != nil {
		return fmt.Errorf("%q is no token; %w", f.args[1], errUsage)
	}
	_, err := locks.ForceRelease(ctx, &latchkeyv1.ForceReleaseRequest{LockKey: f.args[0], FencingToken: token, Reason: f.reason})
	return err
}
