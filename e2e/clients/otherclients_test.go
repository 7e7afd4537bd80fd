//go:build clients

package clients

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// otherClient is a client of another language, with its programs in
// testdata.
type otherClient struct {
	// run makes the command of one of its programs.
	run func(program string, args ...string) *exec.Cmd
	// suffix is that of a program's file.
	suffix string
}

// command returns the command of a program that ends with the test.
func (o *otherClient) command(tb testing.TB, program string, args ...string) *exec.Cmd {
	tb.Helper()
	cmd := o.run(program+o.suffix, args...)
	tb.Cleanup(func() {
		if cmd.Process != nil {
			_ = cmd.Process.Kill() // most have ended long before
		}
	})
	return cmd
}

// topic runs the cases of a topic, each as a test.
func (o *otherClient) topic(t *testing.T, topic, addr string, args ...string) {
	t.Helper()
	var stderr bytes.Buffer
	cmd := o.command(t, "run", append([]string{topic, addr}, args...)...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	cases, failed := 0, false
	for line := range bytes.Lines(out) {
		var result struct{ Case, Error string }
		if err := json.Unmarshal(line, &result); err != nil || result.Case == "" {
			t.Fatalf("not the result of a case: %q, %v", line, err)
		}
		cases++
		failed = failed || result.Error != ""
		t.Run(result.Case, func(t *testing.T) {
			if result.Error != "" {
				t.Error(result.Error)
			}
		})
	}
	if cases == 0 || (err != nil) != failed {
		t.Errorf("%d cases, %v: %s", cases, err, &stderr)
	}
}

// topics runs the cases of several topics, each against a server of its own. Most of
// them wait for leases to end, and so may all wait together.
func (o *otherClient) topics(t *testing.T, topics ...string) {
	t.Helper()
	for _, topic := range topics {
		t.Run(topic, func(t *testing.T) {
			t.Parallel()
			o.topic(t, topic, harness.NewProcess(t).Addr)
		})
	}
}

// overTLS runs the cases of a topic by TLS.
func (o *otherClient) overTLS(t *testing.T, topic string) {
	t.Helper()
	t.Parallel()
	p, addr := &harness.Process{T: t, Dir: filepath.Join(t.TempDir(), "data"), Addr: harness.FreeAddr(t)}, harness.FreeAddr(t)
	p.Args = []string{"--auto-tls", "--listen-client-urls", "http://" + p.Addr + ",https://" + addr}
	p.Start()
	t.Cleanup(p.Kill)
	o.topic(t, topic, addr, filepath.Join(p.Dir, "fixtures", "client", "cert.pem"))
}

// follows has a program watch while the server is killed and started again, and
// wants it to see every event once and in order. put and deleted are its words for
// the kinds of events.
func (o *otherClient) follows(t *testing.T, put, deleted string) {
	t.Helper()
	s := harness.Serve(t)
	var stderr bytes.Buffer
	cmd := o.command(t, "follow", s.Addr, "follow/")
	cmd.Stderr = &stderr
	pipe, err := cmd.StdoutPipe()
	harness.Must(t, "pipe", err)
	harness.Must(t, "start", cmd.Start())
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scan := bufio.NewScanner(pipe); scan.Scan(); {
			lines <- scan.Text()
		}
	}()
	told := func(want string) {
		t.Helper()
		select {
		case got, ok := <-lines:
			if !ok || got != want {
				t.Fatalf("the watch tells %q, want %q: %s", got, want, &stderr)
			}
		case <-time.After(harness.LongWait):
			t.Fatalf("the watch does not tell %q: %s", want, &stderr)
		}
	}
	told("watching")
	for range 3 {
		for i := range 20 {
			key := fmt.Sprintf("follow/%d", i%7)
			told(fmt.Sprintf("%s %s=%d@%d", put, key, i, s.Put(key, strconv.Itoa(i))))
			told(fmt.Sprintf("%s %s=@%d", deleted, key, s.Delete(key)))
		}
		s.Restart()
	}
	s.Put("follow/end", "")
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, &stderr)
	}
}

// turns runs commands that take turns in holding locks, and returns all holds.
func turns(t *testing.T, cmds ...*exec.Cmd) []hold {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var holds []hold
	for _, cmd := range cmds {
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		pipe, err := cmd.StdoutPipe()
		harness.Must(t, "pipe", err)
		harness.Must(t, "start", cmd.Start())
		wg.Go(func() {
			got, err := readHolds(pipe)
			if werr := cmd.Wait(); err != nil || werr != nil {
				t.Errorf("%s: %v, %v: %s", strings.Join(cmd.Args, " "), err, werr, &stderr)
			}
			mu.Lock()
			defer mu.Unlock()
			holds = append(holds, got...)
		})
	}
	wg.Wait()
	return holds
}

// wantPrompt fails the test where a lock lay free although somebody waited for it.
func wantPrompt(t *testing.T, holds []hold) {
	t.Helper()
	sorted := slices.SortedFunc(slices.Values(holds), func(a, b hold) int {
		return cmp.Or(cmp.Compare(a.Lock, b.Lock), cmp.Compare(a.Acquired, b.Acquired))
	})
	var slowest time.Duration
	for i, h := range sorted[min(1, len(sorted)):] {
		if before := sorted[i]; before.Lock == h.Lock {
			slowest = max(slowest, time.Duration(h.Acquired-before.Released))
		}
	}
	if slowest > harness.Promptly {
		t.Errorf("a hand-over took %v", slowest)
	}
	t.Logf("the slowest of %d hand-overs took %v", len(holds), slowest)
}

// wantCount compares what the holders of a lock have counted.
func wantCount(t *testing.T, c *clientv3.Client, key string, want int) {
	t.Helper()
	if got := value(t, c, key); got != strconv.Itoa(want) {
		t.Errorf("%s is %s, counted %d times", key, got, want)
	}
}

// worker is a process with clients in Go that take turns with the others.
func worker(addr string, goroutines, locks, rounds int) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %d %d", workerEnv, addr, goroutines, locks, rounds))
	return cmd
}
