package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
)

// Exit codes, beside those of the programs that are run.
const (
	exitFailed = 1
	exitUsage  = 2
	// exitNotAcquired says that a lock was not free in time, or never would be while others wait: a
	// temporary failure.
	exitNotAcquired = 75
)

// Streams are those of the process, and its environment.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Environ  []string
}

// commands by the first argument.
var commands = map[string]func(ctx context.Context, args []string, s Streams) (int, error){
	"lock":     runLock,
	"locks":    runLocks,
	"recover":  runRecover,
	"snapshot": runSnapshot,
}

// Known reports whether the first of the binary's arguments names a command of this package.
func Known(args []string) bool { return len(args) > 0 && commands[args[0]] != nil }

// errUsage says that the arguments can't be.
var errUsage = errors.New("see --help")

// parse reads arguments by a set of flags, and returns those that are none, wherever they
// stand. Its errors are errUsage and flag.ErrHelp, of which the set has told.
func parse(set *flag.FlagSet, usage string, args []string, s Streams) (others []string, err error) {
	set.SetOutput(s.Err)
	set.Usage = func() {
		_, _ = fmt.Fprint(s.Err, usage) // nobody may listen
		set.PrintDefaults()
	}
	for {
		err := set.Parse(args)
		switch {
		case errors.Is(err, flag.ErrHelp):
			return nil, err
		case err != nil:
			return nil, errUsage
		case set.NArg() == 0:
			return others, nil
		}
		others, args = append(others, set.Arg(0)), set.Args()[1:]
	}
}

// Run carries out a known command and returns the exit code. It ends with ctx.
func Run(ctx context.Context, args []string, s Streams) int {
	code, err := commands[args[0]](ctx, args[1:], s)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return code
	case errors.Is(err, errUsage):
		code = exitUsage
	case code == 0:
		code = exitFailed
	}
	_, _ = fmt.Fprintf(s.Err, "latchkey %s: %v\n", args[0], err) // nobody may listen
	return code
}
