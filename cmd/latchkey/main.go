// Command latchkey runs one node of a Latchkey cluster. Without flags it is a
// cluster of its own that serves etcd's API on http://localhost:2379 and keeps
// its data in default.latchkey.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"google.golang.org/grpc/grpclog"

	"github.com/latchkey-db/latchkey/internal/command"
	"github.com/latchkey-db/latchkey/internal/config"
	"github.com/latchkey-db/latchkey/internal/datadir"
	"github.com/latchkey-db/latchkey/internal/node"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

// drainTimeout bounds how long running calls may finish after a signal.
const drainTimeout = 3 * time.Second

// failedTimeout bounds how long a node that can't go on may take to stop.
const failedTimeout = 10 * time.Second

func main() {
	again := startedAgain()
	os.Exit(run(again, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// run returns the exit code. again is set where the process has started its program again.
func run(again bool, args, environ []string, stdout, stderr io.Writer) int {
	if command.Known(args) {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		return command.Run(ctx, args, command.Streams{In: os.Stdin, Out: stdout, Err: stderr, Environ: environ})
	}
	// Before anything is read: a configuration, and a log's file, may be a pipe that can be opened once.
	var exact error
	if !again {
		exact = allowSlack()
	}
	c, err := config.Parse(args, environ)
	switch {
	case errors.Is(err, config.ErrHelp):
		err = config.WriteHelp(stdout)
	case errors.Is(err, config.ErrVersion):
		err = config.WriteVersion(stdout)
	case err != nil:
		return fail(stderr, err)
	default:
		return serve(c, exact, stdout, stderr)
	}
	if err != nil {
		return fail(stderr, err)
	}
	return 0
}

// fail prints one line and returns the exit code for the error.
func fail(stderr io.Writer, err error) int {
	_, _ = fmt.Fprintf(stderr, "latchkey: %v\n", err)
	var usage *config.UsageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	for _, unfit := range []error{node.ErrListen, datadir.ErrLogShards, datadir.ErrEtcd} {
		if errors.Is(err, unfit) {
			return exitUsage
		}
	}
	return exitFailed
}

// serve runs a node until it is told to stop, and returns the exit code. exact is why the threads' timers
// are exact, nil if they may be late.
func serve(c *config.Config, exact error, stdout, stderr io.Writer) int {
	log, outputs, err := c.OpenLog(stdout, stderr)
	if err != nil {
		return fail(stderr, err)
	}
	defer outputs.Close()
	slog.SetDefault(log)
	// What gRPC's own logger would write to standard error is about calls that
	// failed, which the API logs.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	if exact != nil {
		log.Warn("timers stay exact, which takes CPU time: TimerSlackNSec=4ms of systemd helps", slog.String("error", exact.Error()))
	}
	for _, w := range c.Warnings {
		log.Warn("setting", slog.String("name", w.Setting), slog.String("text", w.Text))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if os.Getenv("GOGC") == "" {
		paceHeap()
	}
	n, err := node.Start(node.Options{
		Config: c, Log: log, Stop: ctx.Done(),
		// Without its disk the node can neither hand anything over nor answer.
		Fatal: func(err error) { os.Exit(fail(stderr, err)) },
	})
	switch {
	case errors.Is(err, node.ErrStopped):
		return 0
	case err != nil:
		return fail(stderr, err)
	}
	// Where systemd did not ask to be told this does nothing.
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Warn("systemd can't be told that the node serves", slog.String("error", err.Error()))
	}
	var failed error
	select {
	case <-ctx.Done():
		stop()
		log.Info("stopping")
	case failed = <-n.Failed():
	}
	stopped := make(chan error, 1)
	go func() { stopped <- shutDown(n) }()
	if failed == nil {
		select {
		case err := <-stopped:
			if err != nil {
				return fail(stderr, err)
			}
			return 0
		case failed = <-n.Failed():
		}
	}
	code := fail(stderr, failed)
	select {
	case err := <-stopped:
		if err != nil {
			log.Debug("stopped badly", slog.String("error", err.Error()))
		}
	case <-time.After(failedTimeout): // a broken disk may hold anything up
	}
	return code
}

// shutDown lets running calls finish, within bounds, and stops the node.
func shutDown(n *node.Node) error {
	drain, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	return n.Stop(drain)
}
