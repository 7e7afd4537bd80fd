package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// allowSlack gives all threads of the process a slack of timerSlack. A thread's slack is that
// of the thread which made it, and the runtime's own threads are there before any code of the
// program runs. So the process starts its program again, with the same id, arguments and
// environment, where startedAgain then reports true.
//
// It does not return where it did that. It does nothing where the slack is as large already, as
// systemd's TimerSlackNSec= may have set it, where the kernel knows none, or where Go has a single
// processor: what holds that in a system call would hold up all else until the runtime looks. It
// returns an error, and has changed nothing, where the program can't be started again. Whatever
// can be read or opened only once is read behind it.
func allowSlack() error {
	// The new program's first thread has the slack of the thread that starts it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if runtime.GOMAXPROCS(0) == 1 {
		return nil
	}
	before, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil || before <= 0 || before >= int(timerSlack) {
		return nil // Real-time threads have none.
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0); err != nil {
		return fmt.Errorf("set the slack of timers: %w", err)
	}
	err = unix.Exec(program, os.Args, append(os.Environ(), againVariable+"="+strconv.Itoa(os.Getpid())))
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(before), 0, 0, 0)
	return fmt.Errorf("start %s again: %w", program, err)
}
