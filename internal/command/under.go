package command

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/latchkey-db/latchkey/client"
)

// graceParts is how many parts of a time to live there are, of which one is left for a program
// to end by itself.
const graceParts = 4

// runUnder runs a program under a lock and returns its exit code. Where the lock may be lost
// it is ended before that: asked first, while there is time, and killed when there is none
// left. With ctx it is asked to end.
func runUnder(ctx context.Context, session *client.Session, grant *client.Grant, program []string, s Streams) (int, error) {
	runtime.LockOSThread() // the program is killed if this thread ends
	defer runtime.UnlockOSThread()
	cmd := exec.Command(program[0], program[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.In, s.Out, s.Err
	cmd.Env = append(append([]string(nil), s.Environ...), tokenVariable+"="+grant.Token().String())
	cmd.SysProcAttr = diesWithParent()
	if err := cmd.Start(); err != nil {
		return exitFailed, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	w := watchman{cmd: cmd, session: session, grant: grant, grace: session.TTL() / graceParts, ended: ended}
	err := w.wait(ctx)
	lost := grant.Lost()
	if lost != nil {
		return exitFailed, fmt.Errorf("the command was ended: %w", lost)
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode(), nil
	case errors.As(err, &exit):
		if status, ok := exit.Sys().(syscall.WaitStatus); ok {
			return 128 + int(status.Signal()), nil // as a shell has it
		}
		return exitFailed, nil
	default:
		return 0, err
	}
}

// watchman ends a program in time.
type watchman struct {
	cmd     *exec.Cmd
	session *client.Session
	grant   *client.Grant
	// grace is for how long the lease must certainly last while the program is not asked to
	// end.
	grace time.Duration
	ended <-chan error
}

// wait waits until the program has ended.
func (w *watchman) wait(ctx context.Context) error {
	signaled := ctx.Done()
	asked := false
	ask := func() {
		if !asked {
			asked = true
			_ = w.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		}
	}
	lost := w.grant.Context().Done()
	look := time.NewTimer(w.session.Left() - w.grace)
	defer look.Stop()
	for {
		select {
		case err := <-w.ended:
			return err
		case <-signaled:
			signaled = nil
			ask()
		case <-look.C:
			left := w.session.Left() - w.grace
			if left <= 0 {
				ask()
				left = w.grace
			}
			look.Reset(left)
		case <-lost:
			lost = nil
			if errors.Is(w.grant.Lost(), client.ErrTaken) && !asked {
				// It is another's already; the program may still tidy up for a moment.
				ask()
				time.AfterFunc(w.grace, func() { _ = w.cmd.Process.Kill() })
				continue
			}
			_ = w.cmd.Process.Kill() // it may have ended
		}
	}
}
