package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// chain writes 1, 2, 3 … into one key, each only over the one before, so that the
// key's history is the numbers without a gap if nothing was lost or applied
// twice.
type chain struct {
	key   string
	acked atomic.Int64
	rev   atomic.Int64
}

func (w *chain) run(ctx context.Context, c *clientv3.Client) {
	next := w.acked.Load() + 1
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		prev := strconv.FormatInt(next-1, 10)
		cond := clientv3.Compare(clientv3.Value(w.key), "=", prev)
		if next == 1 {
			cond = clientv3.Compare(clientv3.CreateRevision(w.key), "=", 0)
		}
		r, err := c.Txn(try).If(cond).
			Then(clientv3.OpPut(w.key, strconv.FormatInt(next, 10))).
			Else(clientv3.OpGet(w.key)).Commit()
		cancel()
		if err != nil {
			continue // unknown: the next try finds out
		}
		if !r.Succeeded {
			kvs := r.Responses[0].GetResponseRange().Kvs
			if len(kvs) == 1 && string(kvs[0].Value) == strconv.FormatInt(next, 10) {
				w.acked.Store(next)
				next++
				continue
			}
			return // check sees what is wrong
		}
		w.acked.Store(next)
		w.rev.Store(r.Header.Revision)
		next++
	}
}

func (w *chain) check(t *testing.T, c *clientv3.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.LongWait)
	defer cancel()
	r, err := c.Get(ctx, w.key)
	if err != nil {
		t.Fatal(err)
	}
	var got, version int64
	if len(r.Kvs) == 1 {
		if got, err = strconv.ParseInt(string(r.Kvs[0].Value), 10, 64); err != nil {
			t.Fatal(err)
		}
		version = r.Kvs[0].Version
	}
	if acked := w.acked.Load(); got < acked || got > acked+1 {
		t.Errorf("%s = %d, acknowledged %d", w.key, got, acked)
	}
	if version != got {
		t.Errorf("%s has version %d at number %d", w.key, version, got)
	}
	if r.Header.Revision < w.rev.Load() {
		t.Errorf("revision %d, %d was acknowledged", r.Header.Revision, w.rev.Load())
	}
}

// A watcher sees every number once, over any number of crashes.
func (w *chain) watch(ctx context.Context, c *clientv3.Client) []string {
	var seen []string
	for r := range c.Watch(ctx, w.key, clientv3.WithRev(1)) {
		for _, e := range r.Events {
			seen = append(seen, string(e.Kv.Value))
		}
	}
	return seen
}

// A server that is killed at any moment comes back with all that it acknowledged:
// keys, leases, alarms; revisions go on, nothing is applied twice, and watches
// resume without a gap.
func TestKilledServerKeepsWhatItAcknowledged(t *testing.T) {
	seed := harness.Seed(t, "./e2e/server", 0)
	rnd := rand.New(rand.NewPCG(seed, 1))
	p := harness.NewProcess(t)
	c := p.Client()
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	chains := make([]*chain, 8)
	var writers, watchers sync.WaitGroup
	watched := make([][]string, len(chains))
	for i := range chains {
		chains[i] = &chain{key: fmt.Sprintf("chain/%d", i)}
		watchers.Go(func() { watched[i] = chains[i].watch(ctx, c) })
	}
	var leases []clientv3.LeaseID
	for range 5 {
		run, stop := context.WithCancel(ctx)
		for _, w := range chains {
			writers.Go(func() { w.run(run, c) })
		}
		l, err := c.Grant(ctx, 600)
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, l.ID)
		wait := time.NewTimer(time.Duration(50+rnd.IntN(300)) * time.Millisecond)
		<-wait.C
		p.Restart()
		stop()
		writers.Wait()
		for _, w := range chains {
			w.check(t, c)
		}
		list, err := c.Leases(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range leases {
			if !slices.ContainsFunc(list.Leases, func(s clientv3.LeaseStatus) bool { return s.ID == id }) {
				t.Errorf("lease %x is gone", id)
			}
		}
	}
	checkWatched(t, c, chains, watched, cancel, &watchers)
}

// checkWatched waits until the watchers have seen all and compares.
func checkWatched(t *testing.T, c *clientv3.Client, chains []*chain, watched [][]string, stop func(), watchers *sync.WaitGroup) {
	t.Helper()
	for _, w := range chains {
		if _, err := c.Put(t.Context(), w.key, "end"); err != nil {
			t.Fatal(err)
		}
	}
	// The watch client delivers to the watchers in order: one more round trip of
	// a watch of its own shows that the stream has passed the last writes.
	done, cancel := context.WithTimeout(t.Context(), harness.LongWait)
	defer cancel()
	for _, w := range chains {
		for r := range c.Watch(done, w.key, clientv3.WithRev(1)) {
			last := r.Events[len(r.Events)-1]
			if string(last.Kv.Value) == "end" {
				break
			}
		}
	}
	stop()
	watchers.Wait()
	for i, w := range chains {
		for n, value := range watched[i] {
			if want := strconv.Itoa(n + 1); value != want && value != "end" {
				t.Fatalf("%s: event %d is %q: lost, doubled or out of order", w.key, n+1, value)
			}
		}
		if len(watched[i]) < int(w.acked.Load()) {
			t.Errorf("%s: %d events, %d writes", w.key, len(watched[i]), w.acked.Load())
		}
	}
}

// A brand-new server killed while it starts for the first time starts again.
func TestKilledDuringFirstStart(t *testing.T) {
	t.Parallel()
	for i := range 15 {
		p := &harness.Process{T: t, Dir: filepath.Join(t.TempDir(), "data"), Addr: harness.FreeAddr(t)}
		p.Launch()
		wait := time.NewTimer(time.Duration(i*25) * time.Millisecond)
		<-wait.C
		p.Kill()
		p.Start()
		c := p.Client()
		if _, err := c.Put(t.Context(), "k", "v"); err != nil {
			t.Errorf("killed after %d ms: %v", i*25, err)
		}
		c.Close()
		p.Kill()
	}
}

// newestLog returns the newest file of the data shards' log.
func newestLog(t *testing.T, dir string) string {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "raft/data/log/*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("no log: %v", err)
	}
	return slices.Max(logs)
}

// The end of the newest log may be torn, by truncation or by zeros; a flipped bit
// in its middle is damage, and the node names the file and refuses to start.
func TestTornLogStartsAndDamagedLogIsRefused(t *testing.T) {
	p := harness.NewProcess(t)
	c := p.Client()
	for i := range 300 {
		if _, err := c.Put(t.Context(), fmt.Sprintf("k%d", i), strings.Repeat("v", 100)); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
	p.Kill()
	original := filepath.Join(t.TempDir(), "copy")
	if out, err := exec.Command("cp", "-a", p.Dir, original).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	reset := func() string {
		if err := os.RemoveAll(p.Dir); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("cp", "-a", original, p.Dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return newestLog(t, p.Dir)
	}
	change := func(path string, fn func([]byte) []byte) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, fn(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	end := func(b []byte) int { return len(strings.TrimRight(string(b), "\x00")) }
	for _, cut := range []int{1, 7, 60, 400} {
		change(reset(), func(b []byte) []byte { return b[:end(b)-cut] })
		p.Start()
		c := p.Client()
		r, err := c.Get(t.Context(), "k", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil || r.Count < 295 {
			t.Errorf("cut by %d: %d keys, %v", cut, r.Count, err)
		}
		c.Close()
		p.Kill()
	}
	change(reset(), func(b []byte) []byte { return append(b[:end(b)], make([]byte, 4<<20)...) })
	p.Start()
	p.Kill()
	log := reset()
	change(log, func(b []byte) []byte { b[end(b)/2] ^= 4; return b })
	code, out := p.RunToEnd()
	if code != 1 || !strings.Contains(out, filepath.Base(log)) || !strings.Contains(out, "damaged") {
		t.Errorf("flipped bit: exit %d, %q", code, out)
	}
}

func TestRefusals(t *testing.T) {
	p := harness.NewProcess(t)
	second := &harness.Process{T: t, Dir: p.Dir, Addr: harness.FreeAddr(t)}
	if code, out := second.RunToEnd(); code != 1 || !strings.Contains(out, "in use") || strings.Count(out, "\n") != 1 {
		t.Errorf("directory in use: exit %d, %q", code, out)
	}
	port := &harness.Process{T: t, Dir: filepath.Join(t.TempDir(), "data"), Addr: p.Addr}
	if code, out := port.RunToEnd(); code != 2 || !strings.Contains(out, p.Addr) || strings.Count(out, "\n") != 1 {
		t.Errorf("port in use: exit %d, %q", code, out)
	}
	peers := &harness.Process{T: t, Dir: port.Dir, Addr: harness.FreeAddr(t), Args: []string{"--listen-peer-urls", "http://" + p.Addr}}
	if code, out := peers.RunToEnd(); code != 2 || !strings.Contains(out, p.Addr+", of --listen-peer-urls") || strings.Count(out, "\n") != 1 {
		t.Errorf("port for other nodes in use: exit %d, %q", code, out)
	}
	if _, err := os.Stat(port.Dir); !os.IsNotExist(err) {
		t.Errorf("ports in use left a directory: %v", err)
	}
	flag := &harness.Process{T: t, Dir: t.TempDir(), Addr: harness.FreeAddr(t), Args: []string{"--no-such-flag"}}
	if code, out := flag.RunToEnd(); code != 2 || strings.Count(out, "\n") != 1 {
		t.Errorf("unknown flag: exit %d, %q", code, out)
	}
	if err := p.Terminate(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(p.Dir, "raft")); err != nil {
		t.Fatal(err)
	}
	if code, out := p.RunToEnd(); code != 1 || !strings.Contains(out, "raft") || strings.Count(out, "\n") != 1 {
		t.Errorf("log moved away: exit %d, %q", code, out)
	}
}
