package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/latchkey-db/latchkey/e2e/harness"
	"github.com/latchkey-db/latchkey/internal/freeport"
)

// process is one server process and its data directory.
type process struct {
	t    testing.TB
	dir  string
	addr string
	args []string
	// wrap, if any, is the command that runs the server's.
	wrap []string
	cmd  *exec.Cmd
	log  *bytes.Buffer
	// waited yields the process's end.
	waited chan error
}

// newProcess starts a server on a free port and an empty directory.
func newProcess(tb testing.TB, args ...string) *process {
	tb.Helper()
	p := &process{t: tb, dir: filepath.Join(tb.TempDir(), "data"), addr: freeAddr(tb), args: args}
	p.start()
	tb.Cleanup(func() {
		if p.cmd != nil {
			p.kill()
		}
	})
	return p
}

func freeAddr(tb testing.TB) string {
	tb.Helper()
	addrs, err := freeport.Addrs(1)
	if err != nil {
		tb.Fatal(err)
	}
	return addrs[0]
}

// launch starts the process without waiting for it to serve.
func (p *process) launch() {
	p.t.Helper()
	bin, err := harness.Server()
	if err != nil {
		p.t.Fatal(err)
	}
	url := "http://" + p.addr
	args := slices.Concat(p.wrap, []string{
		bin, "--data-dir", p.dir, "--listen-client-urls", url, "--advertise-client-urls", url,
	}, splitFlags(p.t, p.args), p.args)
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool {
		return strings.HasPrefix(s, "LATCHKEY_E2E_") // no settings of the server's
	})
	p.log = &bytes.Buffer{}
	p.cmd.Stderr, p.cmd.Stdout = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.waited = make(chan error, 1)
	cmd, waited := p.cmd, p.waited
	go func() { waited <- cmd.Wait() }()
}

// start starts the process and waits until it answers.
func (p *process) start() {
	p.t.Helper()
	p.launch()
	c := p.client()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	for {
		try, stop := context.WithTimeout(ctx, time.Second)
		_, err := c.Get(try, "ready")
		stop()
		if err == nil || errors.Is(err, rpctypes.ErrUserEmpty) {
			return
		}
		select {
		case err := <-p.waited:
			p.t.Fatalf("server ended: %v\n%s", err, p.log)
		case <-ctx.Done():
			p.t.Fatalf("server does not answer: %v\n%s", err, p.log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// kill ends the process as a crash would, with signal 9.
func (p *process) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	<-p.waited
	p.cmd = nil
}

// terminate asks the process to stop and returns how it ended.
func (p *process) terminate() error {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	p.cmd = nil
	select {
	case err := <-p.waited:
		return err
	case <-time.After(20 * time.Second):
		p.t.Fatal("server does not stop")
		return nil
	}
}

// restart kills the process and starts it again on its data.
func (p *process) restart() {
	p.t.Helper()
	p.kill()
	p.start()
}

// client returns a client of the process; the caller closes it.
func (p *process) client() *clientv3.Client {
	p.t.Helper()
	return dialClient(p.t, p.addr)
}

func dialClient(tb testing.TB, addrs ...string) *clientv3.Client {
	tb.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: addrs, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(fastReconnect)},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}
