package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/latchkey-db/latchkey/internal/etcdlog"
	"github.com/latchkey-db/latchkey/internal/freeport"
)

// FastReconnect lets clients find a restarted server without gRPC's seconds of
// patience.
var FastReconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond},
	MinConnectTimeout: time.Second,
}

// Process is one server process and its data directory.
type Process struct {
	T   testing.TB
	Dir string
	// Addr is where it serves clients, host:port.
	Addr string
	// Args are its further flags.
	Args []string
	// Wrap, if any, is the command that runs the server's.
	Wrap []string
	// Cmd is the command that runs, nil while none does.
	Cmd *exec.Cmd
	// Log is what the command printed. Reading it is safe once the process has ended.
	Log *bytes.Buffer
	// waited yields the process's end.
	waited chan error
}

// AnyPeerURL is where a server that is a cluster of its own may listen for other nodes, on a port
// that the system chooses.
const AnyPeerURL = "http://127.0.0.1:0"

// NewProcess starts a server on a free port and an empty directory.
func NewProcess(tb testing.TB, args ...string) *Process {
	tb.Helper()
	p := &Process{T: tb, Dir: filepath.Join(tb.TempDir(), "data"), Addr: FreeAddr(tb), Args: args}
	p.Start()
	tb.Cleanup(func() {
		if p.Cmd != nil {
			p.Kill()
		}
	})
	return p
}

// FreeAddr returns an address of this host with a port that nobody uses.
func FreeAddr(tb testing.TB) string {
	tb.Helper()
	addrs, err := freeport.Addrs(1)
	if err != nil {
		tb.Fatal(err)
	}
	return addrs[0]
}

// FreeHosts returns three of the four numbers of addresses of this host that no other test uses,
// with a dot behind them.
func FreeHosts(tb testing.TB) string {
	tb.Helper()
	_, port, err := net.SplitHostPort(FreeAddr(tb))
	n, failed := strconv.Atoi(Must(tb, port, err))
	Must(tb, n, failed)
	return fmt.Sprintf("127.%d.%d.", n>>8, n&0xff) // not of 127.0.0., since ports are high
}

// Launch starts the process without waiting for it to serve.
func (p *Process) Launch() {
	p.T.Helper()
	bin, err := Server()
	if err != nil {
		p.T.Fatal(err)
	}
	url := "http://" + p.Addr
	args := slices.Concat(p.Wrap, []string{
		bin, "--data-dir", p.Dir, "--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", AnyPeerURL,
	}, splitFlags(p.T, p.Args), p.Args)
	p.Cmd = exec.Command(args[0], args[1:]...)
	p.Cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool {
		return strings.HasPrefix(s, "LATCHKEY_E2E_") // no settings of the server's
	})
	p.Log = &bytes.Buffer{}
	p.Cmd.Stderr, p.Cmd.Stdout = p.Log, p.Log
	if err := p.Cmd.Start(); err != nil {
		p.T.Fatal(err)
	}
	p.waited = make(chan error, 1)
	cmd, waited := p.Cmd, p.waited
	go func() { waited <- cmd.Wait() }()
}

// Start starts the process and waits until it answers.
func (p *Process) Start() {
	p.T.Helper()
	p.Launch()
	c := p.Client()
	defer closeAll(c)
	ctx, cancel := context.WithTimeout(context.Background(), LongWait)
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
			p.T.Fatalf("server ended: %v\n%s", err, p.Log)
		case <-ctx.Done():
			p.T.Fatalf("server does not answer: %v\n%s", err, p.Log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// RunToEnd starts the server and returns its exit code and what it printed.
func (p *Process) RunToEnd() (int, string) {
	p.T.Helper()
	p.Launch()
	select {
	case err := <-p.waited:
		p.Cmd = nil
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return exit.ExitCode(), p.Log.String()
		}
		return 0, p.Log.String()
	case <-time.After(LongWait):
		p.Kill()
		p.T.Fatal("server did not end")
		return 0, ""
	}
}

// Kill ends the process as a crash would, with signal 9.
func (p *Process) Kill() {
	p.T.Helper()
	if err := p.Cmd.Process.Kill(); err != nil {
		p.T.Fatal(err)
	}
	if err := <-p.waited; err == nil {
		p.T.Log("the server had ended before it was killed")
	}
	p.Cmd = nil
}

// Terminate asks the process to stop and returns how it ended.
func (p *Process) Terminate() error {
	p.T.Helper()
	if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.T.Fatal(err)
	}
	p.Cmd = nil
	select {
	case err := <-p.waited:
		return err
	case <-time.After(LongWait):
		p.T.Fatal("server does not stop")
		return nil
	}
}

// Restart kills the process and starts it again on its data.
func (p *Process) Restart() {
	p.T.Helper()
	p.Kill()
	p.Start()
}

// Client returns a client of the process; the caller closes it.
func (p *Process) Client() *clientv3.Client {
	p.T.Helper()
	return Dial(p.T, p.Addr)
}

// Dial returns a client of servers; the caller closes it.
func Dial(tb testing.TB, addrs ...string) *clientv3.Client {
	tb.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: addrs, DialTimeout: 5 * time.Second, Logger: etcdlog.New(slog.New(slog.DiscardHandler)),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(FastReconnect)},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// JWTFlag returns the flag for tokens signed with a key of its own.
func JWTFlag(tb testing.TB) string {
	tb.Helper()
	key := filepath.Join(tb.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("secret", 10)), 0o600); err != nil {
		tb.Fatal(err)
	}
	return "--auth-token=jwt,sign-method=HS256,ttl=1h,priv-key=" + key
}
