package mixed

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/faults"
	"github.com/latchkey-db/latchkey/e2e/harness"
)

// etcdctl takes a lock by a process for each, which prints its key and gives it back when
// it is asked to end.
type etcdctl struct {
	e    *env
	node string
	// c is only to renew leases, so that it is known for how long they last.
	c *clientv3.Client

	mu sync.Mutex
	// dead says that the party has died; proc is the process that runs, or has run last, nil
	// before there is one. Protected by mu.
	dead bool
	proc *process
}

// process is a run of etcdctl.
type process struct {
	*exec.Cmd
	// ended is closed when it has ended, with err.
	ended chan struct{}
	err   error
}

func openEtcdctl(_ context.Context, e *env, nodes []string) (party, error) {
	c, err := faults.Dial(nodes[0])
	if err != nil {
		return nil, err
	}
	return &etcdctl{e: e, node: nodes[0], c: c}, nil
}

// start starts etcdctl and returns what it prints.
func (p *etcdctl) start(args ...string) (*process, io.Reader, error) {
	bin, err := harness.Etcdctl()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(filepath.Join(bin, "etcdctl"), append([]string{"--endpoints", p.node}, args...)...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "ETCDCTL_") })
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return nil, nil, errDied
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	p.proc = &process{Cmd: cmd, ended: make(chan struct{})}
	return p.proc, out, nil
}

// acquire leaves the queue, as somebody does who interrupts etcdctl, when ctx ends.
func (p *etcdctl) acquire(ctx context.Context, lock string, _ mode) (grant, error) {
	proc, out, err := p.start("lock", lock, "--ttl", strconv.Itoa(int(ttl/time.Second)), "-w", "json")
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { proc.signal(syscall.SIGTERM) })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	at := time.Now()
	interrupted := !stop()
	go func() {
		proc.err = proc.Wait()
		close(proc.ended)
	}()
	if err != nil {
		return nil, errors.Join(err, proc.end())
	}
	var printed struct {
		KVs []struct {
			CreateRevision int64 `json:"create_revision"`
			Lease          int64 `json:"lease"`
		} `json:"kvs"`
	}
	if err := json.Unmarshal(line, &printed); err != nil || len(printed.KVs) != 1 {
		return nil, errors.Join(fmt.Errorf("etcdctl printed %s", line), err, proc.end())
	}
	if interrupted {
		// It has the lock, and gives it back by now.
		return nil, errors.Join(errNotGranted, proc.end())
	}
	l := newEtcdLease(p.e, p.c, clientv3.LeaseID(printed.KVs[0].Lease))
	return &leasedGrant{l, printed.KVs[0].CreateRevision, at, func(context.Context) error { return proc.end() }}, nil
}

// signal sends the process a signal, unless it has ended.
func (p *process) signal(s syscall.Signal) { _ = p.Process.Signal(s) }

// end asks the process to end, and has it end.
func (p *process) end() error {
	p.signal(syscall.SIGCONT)
	p.signal(syscall.SIGTERM)
	select {
	case <-p.ended:
		return p.err
	case <-time.After(patience):
		p.signal(syscall.SIGKILL)
		return errors.New("etcdctl does not end")
	}
}

func (p *etcdctl) still() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.proc.signal(syscall.SIGSTOP)
}

func (p *etcdctl) die() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = true
	if p.proc != nil {
		p.proc.signal(syscall.SIGKILL)
	}
	_ = p.c.Close() // nothing is to be given back
}

func (p *etcdctl) leave(context.Context) error {
	p.die()
	return nil
}
