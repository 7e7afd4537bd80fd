package main

import (
	"os"
	"strconv"
	"time"
)

// timerSlack is by how much the kernel may have the timers of a node's threads go off late.
//
// Go's runtime has a thread that looks after the others (runtime.sysmon): while any goroutine
// runs, or waits in a system call for a disk, it looks every 20 us. With Linux's slack of
// 50 us that is up to 14,000 times a second, in each node, and takes a quarter of the
// processors' time that a node spends for a lone client. What it looks for can wait: that a
// system call takes so long that its goroutine's processor is given to others, and that a
// goroutine has run for 10 ms. All other timers of a node are of milliseconds and more, and
// say how long is waited at least.
const timerSlack = 4 * time.Millisecond

// againVariable is in the environment of a process that has started its program again. Its
// value is the id of the process, since a process that this one was started by may have it too.
const againVariable = "LATCHKEY_STARTED_AGAIN"

// startedAgain reports whether the process has started its program again (allowSlack), and removes
// what says so from the environment. It is called once.
func startedAgain() bool {
	id := os.Getenv(againVariable)
	_ = os.Unsetenv(againVariable) // which fails for a bad name alone
	return id == strconv.Itoa(os.Getpid())
}
