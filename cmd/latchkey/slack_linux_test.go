package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// helper is set in the environment of processes that tests start of their own program.
const helper = "TEST_ALLOW_SLACK"

// removes is helper's value for one that removes its program first.
const removes = "removes"

func TestMain(m *testing.M) {
	if os.Getenv(helper) != "" {
		os.Exit(tellSlack())
	}
	os.Exit(m.Run())
}

// tellSlack does what a node does when it starts, and prints what came of it.
func tellSlack() int {
	again := startedAgain()
	if !again {
		fmt.Println("started", os.Getpid())
		if os.Getenv(helper) == removes {
			_ = os.Remove(os.Args[0])
		}
		if err := allowSlack(); err != nil {
			fmt.Println(err)
		}
	}
	slack := make(chan int)
	go func() { // which may run on any thread
		runtime.LockOSThread()
		n, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
		if err != nil {
			n = -1
		}
		slack <- n
	}()
	_, left := os.LookupEnv(againVariable)
	fmt.Println(again, os.Getpid(), <-slack, left, os.Args[1:])
	return 0
}

// tell runs a program that calls tellSlack, from a thread with so much slack and for two
// processors unless the environment of the test has another number, and returns its process id and what it printed.
func tell(t *testing.T, slack time.Duration, how, program string, args ...string) (pid int, out string) {
	t.Helper()
	runtime.LockOSThread() // and stays so: the thread ends with the test
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append([]string{"GOMAXPROCS=2"}, append(os.Environ(), helper+"="+how)...)
	printed, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	return cmd.Process.Pid, string(printed)
}

// usual is Linux's slack.
const usual = 50 * time.Microsecond

// TestProgramStartsAgainWithSlack: once, in the same process, with the same arguments.
func TestProgramStartsAgainWithSlack(t *testing.T) {
	pid, out := tell(t, usual, "starts", os.Args[0], "one", "two words")
	want := fmt.Sprintf("started %d\ntrue %d %d false [one two words]\n", pid, pid, timerSlack.Nanoseconds())
	if out != want {
		t.Errorf("the program printed %q, want %q", out, want)
	}
}

// TestSlackOfOthersStays: a process whose slack is as large already does not start again.
func TestSlackOfOthersStays(t *testing.T) {
	const large = 2 * timerSlack
	pid, out := tell(t, large, "starts", os.Args[0])
	if want := fmt.Sprintf("started %d\nfalse %d %d false []\n", pid, pid, large.Nanoseconds()); out != want {
		t.Errorf("the program printed %q, want %q", out, want)
	}
}

// TestSlackOfOneProcessor: where system calls hold up all else, the runtime shall look soon.
func TestSlackOfOneProcessor(t *testing.T) {
	t.Setenv("GOMAXPROCS", "1")
	pid, out := tell(t, usual, "starts", os.Args[0])
	if want := fmt.Sprintf("started %d\nfalse %d %d false []\n", pid, pid, usual.Nanoseconds()); out != want {
		t.Errorf("the program printed %q, want %q", out, want)
	}
}

// TestSlackOfAnotherProcess: that another process has started again counts for nothing.
func TestSlackOfAnotherProcess(t *testing.T) {
	t.Setenv(againVariable, strconv.Itoa(os.Getpid()))
	pid, out := tell(t, usual, "starts", os.Args[0])
	if want := fmt.Sprintf("started %d\ntrue %d %d false []\n", pid, pid, timerSlack.Nanoseconds()); out != want {
		t.Errorf("the program printed %q, want %q", out, want)
	}
}

// TestProgramThatIsGone: what can't be started again says so, and goes on as it was.
func TestProgramThatIsGone(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	data, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, data, 0o700); err != nil {
		t.Fatal(err)
	}
	pid, out := tell(t, usual, removes, program)
	want := fmt.Sprintf("started %d\nstart %s again: no such file or directory\nfalse %d %d false []\n", pid, program, pid, usual.Nanoseconds())
	if out != want {
		t.Errorf("the program printed %q, want %q", out, want)
	}
}
