//go:build clients

package clients

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// The times of the elections. A leader that cannot renew gives up before others
// may take the lock: renew + retry < lease - 1 s, where the second is what
// client-go's record rounds its times to.
const (
	electionLease = 6 * time.Second
	electionRenew = 3 * time.Second
	electionRetry = 500 * time.Millisecond
	// electionTry is the longest time between two tries of a candidate, which
	// client-go draws.
	electionTry = electionRetry * 22 / 10
	// electionSlack is for a busy machine.
	electionSlack = 5 * time.Second
)

// candidateBinary builds the candidate once for all tests and returns its path.
var candidateBinary = sync.OnceValues(func() (string, error) {
	dir, err := harness.Dir("latchkey-e2e-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "clientgo")
	out, err := exec.Command("go", "build", "-C", "clientgo", "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build candidate: %w: %s", err, out)
	}
	return path, nil
})

// candidateEvent is a line that a candidate prints; clientgo/journal.go explains
// it.
type candidateEvent struct {
	By   string `json:"by"`
	Kind string `json:"kind"`
	At   int64  `json:"at"`
	Done int64  `json:"done"`
	Rev  int64  `json:"rev"`
}

// candidate is one who stands for the lead in a process of clientgo.
type candidate struct {
	id string
	*campaign
	// events belong to the election's mutex while the process runs.
	events []candidateEvent
}

// campaign is a process of clientgo.
type campaign struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	read   chan error
}

// election is a lock that candidates compete for.
type election struct {
	t    *testing.T
	p    *harness.Process
	key  string
	args []string

	mu sync.Mutex
	// happened is closed and replaced when a candidate prints something.
	happened chan struct{}
	all      []*candidate
}

// newElection makes an election whose candidates end with the test, when all that
// happened is checked.
func newElection(t *testing.T, p *harness.Process, key string, args ...string) *election {
	t.Helper()
	e := &election{t: t, p: p, key: key, args: args, happened: make(chan struct{})}
	t.Cleanup(func() {
		for _, c := range e.all {
			c.end()
		}
		e.check()
		if t.Failed() {
			for _, c := range e.all {
				t.Logf("candidate %s: %+v\n%s", c.id, c.events, &c.stderr)
			}
		}
	})
	return e
}

// stand starts a process with so many candidates.
func (e *election) stand(n int) {
	e.t.Helper()
	bin, err := candidateBinary()
	if err != nil {
		e.t.Fatal(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	run := &campaign{read: make(chan error, 1)}
	var ids []string
	for range n {
		c := &candidate{id: fmt.Sprintf("c%d", len(e.all)), campaign: run}
		e.all = append(e.all, c)
		ids = append(ids, c.id)
	}
	run.cmd = exec.Command(bin, append([]string{
		"-endpoint", e.p.Addr, "-key", e.key, "-id", strings.Join(ids, ","), "-lease", electionLease.String(),
		"-renew", electionRenew.String(), "-retry", electionRetry.String(),
	}, e.args...)...)
	run.cmd.Stderr = &run.stderr
	stdout, err := run.cmd.StdoutPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	if err := run.cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	go func() { run.read <- e.follow(stdout) }()
}

// follow takes down what the candidates of a process print until it ends.
func (e *election) follow(r io.Reader) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var event candidateEvent
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return fmt.Errorf("%q: %w", lines.Text(), err)
		}
		if err := e.add(event); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (e *election) add(event candidateEvent) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.all {
		if c.id == event.By {
			c.events = append(c.events, event)
			close(e.happened)
			e.happened = make(chan struct{})
			return nil
		}
	}
	return fmt.Errorf("%+v: no such candidate", event)
}

// end kills the process, frozen or not, if it has not ended yet.
func (r *campaign) end() {
	if r.cmd.ProcessState != nil {
		return
	}
	_ = r.cmd.Process.Kill()
	<-r.read
	_ = r.cmd.Wait()
}

// ended waits for a candidate's process to end by itself, which it does without an
// error.
func (e *election) ended(c *candidate) {
	e.t.Helper()
	if err := harness.Within(e.t, "the end of "+c.id, electionLease, c.read); err != nil {
		e.t.Error(err)
	}
	if err := c.cmd.Wait(); err != nil {
		e.t.Errorf("candidate %s: %v", c.id, err)
	}
}

// until waits for a condition of the events to hold.
func (e *election) until(what string, limit time.Duration, holds func() bool) {
	e.t.Helper()
	late := time.After(limit)
	for {
		e.mu.Lock()
		ok, happened := holds(), e.happened
		e.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-happened:
		case <-late:
			e.t.Fatalf("%s: not within %v", what, limit)
		}
	}
}

// successor waits for another leader than those of before, and returns it.
func (e *election) successor(limit time.Duration, before ...*candidate) *candidate {
	e.t.Helper()
	begin := time.Now()
	var leader *candidate
	e.until("a leader", limit, func() bool {
		for _, c := range e.all {
			if !slices.Contains(before, c) && c.has("started") && !c.has("stopped") {
				leader = c
			}
		}
		return leader != nil
	})
	e.t.Logf("%s leads after %v", leader.id, time.Since(begin).Round(time.Millisecond))
	return leader
}

func (c *candidate) has(kind string) bool {
	return slices.ContainsFunc(c.events, func(e candidateEvent) bool { return e.Kind == kind })
}

func (c *candidate) last(kind string) candidateEvent {
	var last candidateEvent
	for _, e := range c.events {
		if e.Kind == kind {
			last = e
		}
	}
	return last
}

// saw reports whether a candidate that still runs has printed such an event.
func (e *election) saw(c *candidate, kind string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return c.has(kind)
}

// renews waits for so many more writes of the leader.
func (e *election) renews(c *candidate, times int) {
	e.t.Helper()
	writes := func() (n int) {
		for _, event := range c.events {
			if event.Kind == "wrote" {
				n++
			}
		}
		return n
	}
	e.mu.Lock()
	want := writes() + times
	e.mu.Unlock()
	e.until("a renewal", electionLease, func() bool { return writes() >= want })
}

// written is a write of the lock with its writer.
type written struct {
	candidateEvent
	by *candidate
}

// check holds all that happened against client-go's rules: a lead ends when the
// leader says so, at the latest when its last renewal is so old that it gives up,
// and no other lead begins before that; a lock that was not given back is not taken
// before its lease is over, by the clock of its taker.
func (e *election) check() {
	e.t.Helper()
	type lead struct {
		id         string
		start, end int64
	}
	var leads []lead
	var writes []written
	for _, c := range e.all {
		for _, event := range c.events {
			if event.Kind == "wrote" || event.Kind == "released" {
				writes = append(writes, written{event, c})
			}
		}
		if !c.has("started") {
			continue
		}
		l := lead{c.id, c.last("started").At, c.last("wrote").At + int64(electionRenew+electionRetry)}
		for _, kind := range []string{"yielding", "stopped"} {
			if c.has(kind) {
				l.end = min(l.end, c.last(kind).At)
			}
		}
		leads = append(leads, l)
	}
	slices.SortFunc(leads, func(a, b lead) int { return cmp.Compare(a.start, b.start) })
	for i := 1; i < len(leads); i++ {
		if gap := time.Duration(leads[i].start - leads[i-1].end); gap < 0 {
			e.t.Errorf("two leaders for %v: %+v and %+v", -gap, leads[i-1], leads[i])
		}
	}
	slices.SortFunc(writes, func(a, b written) int { return cmp.Compare(a.Rev, b.Rev) })
	for i := 1; i < len(writes); i++ {
		before, after := writes[i-1], writes[i]
		if before.Rev == after.Rev {
			e.t.Errorf("two writes of revision %d, by %s and %s", after.Rev, before.by.id, after.by.id)
		}
		if waited := time.Duration(after.Done - before.At); before.by != after.by && before.Kind == "wrote" && waited < electionLease-time.Second {
			e.t.Errorf("%s took the lock %v after %s renewed it", after.by.id, waited, before.by.id)
		}
	}
	e.t.Logf("%d leads, %d writes", len(leads), len(writes))
}

// Candidates of client-go lead one at a time: over crashes and resignations of
// leaders, freezes of their processes, and restarts and absences of the server.
func TestOtherClientGo(t *testing.T) {
	p := harness.NewProcess(t)
	for round := range 5 {
		t.Run(fmt.Sprintf("rush%d", round), func(t *testing.T) { electionOfRush(t, p, round) })
	}
	t.Run("long", func(t *testing.T) {
		t.Run("crashes", electionOfCrashes)
		t.Run("freezes", electionOfFreezes)
	})
}

// takeover is how long it may take until a leader that renews no more has a
// successor: others see its last renewal at their next try, and its end at another.
const takeover = electionLease + 2*electionTry + electionSlack

// Many candidates find no lock and create it at the same time.
func electionOfRush(t *testing.T, p *harness.Process, round int) {
	t.Helper()
	e := newElection(t, p, fmt.Sprintf("/registry/leases/rush%d", round))
	for range 2 {
		e.stand(20)
	}
	e.renews(e.successor(electionTry+electionSlack), 2)
}

func electionOfCrashes(t *testing.T) {
	t.Parallel()
	e := newElection(t, harness.NewProcess(t), "/registry/leases/crashes", "-release")
	for range 4 {
		e.stand(1)
	}
	first := e.successor(electionTry + electionSlack)
	e.renews(first, 2)

	// The server crashes and is back before the leader gives up: nothing changes.
	e.p.Restart()
	e.renews(first, 2)
	if e.saw(first, "stopped") {
		t.Errorf("%s lost its lead by a restart of the server", first.id)
	}

	first.end()
	second := e.successor(takeover, first)
	e.renews(second, 2)

	// A leader that resigns has a successor at its next try.
	if err := second.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	third := e.successor(electionTry+electionSlack, first, second)
	e.ended(second)
	if !second.has("released") {
		t.Errorf("%s did not give the lock back", second.id)
	}
	e.renews(third, 2)
}

// The candidates of this election don't give back what they have lost: client-go
// does not look whose lock it gives back when a freeze hit it in a renewal.
func electionOfFreezes(t *testing.T) {
	t.Parallel()
	e := newElection(t, harness.NewProcess(t), "/registry/leases/freezes")
	for range 3 {
		e.stand(1)
	}
	first := e.successor(electionTry + electionSlack)
	e.renews(first, 2)

	// A frozen leader has a successor, and finds out when it goes on.
	if err := first.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	second := e.successor(takeover, first)
	if err := first.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	e.ended(first)
	if !first.has("stopped") {
		t.Errorf("%s does not know that it leads no more", first.id)
	}
	e.renews(second, 2)

	// A leader without a server gives up; when the server is back there is one
	// leader again.
	e.p.Kill()
	e.until("the end of the lead", electionRenew+electionRetry+electionSlack, func() bool { return second.has("stopped") })
	e.ended(second)
	e.p.Start()
	e.stand(1)
	third := e.successor(takeover, first, second)
	e.renews(third, 2)
}
