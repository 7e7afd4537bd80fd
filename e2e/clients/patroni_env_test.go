//go:build clients

package clients

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/template"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// Patroni's times, in seconds. Its rule is loop + 2*retry <= TTL; Debian's takes
// any, later versions a TTL of at least 20.
const (
	patroniTTL   = 11
	patroniLoop  = 1
	patroniRetry = 5
)

// patroniLimit is for what takes seconds: a node's start, a base backup, a
// promotion.
const patroniLimit = time.Minute

// patroniConfig is the configuration of one node.
var patroniConfig = template.Must(template.New("patroni.yml").Parse(`
scope: ledger
namespace: /service/
name: {{.Name}}
log:
  level: INFO
restapi:
  listen: {{.API}}
  connect_address: {{.API}}
etcd3:
  hosts: {{.Store}}
{{- if .Auth}}
  # This Patroni asks for the members without its token, which etcd 3.7 refuses.
  use_proxies: true
  username: patroni
  password: pa:ss
{{- end}}
bootstrap:
  dcs:
    ttl: {{.TTL}}
    loop_wait: {{.Loop}}
    retry_timeout: {{.Retry}}
    synchronous_mode: true
    postgresql:
      use_pg_rewind: true
      parameters:
        wal_log_hints: "on"
        wal_keep_size: 64MB
        shared_buffers: 16MB
        max_connections: 30
  initdb:
  - encoding: UTF8
  - locale: C
  - data-checksums
  - no-sync
postgresql:
  listen: {{.SQL}}
  connect_address: {{.SQL}}
  bin_dir: {{.Bin}}
  data_dir: {{.Dir}}/data
  pgpass: {{.Dir}}/pgpass
  basebackup:
  - checkpoint: fast
  - no-sync
  parameters:
    unix_socket_directories: {{.Dir}}
  authentication:
    superuser:
      username: postgres
      password: super
    replication:
      username: replicator
      password: rep
    rewind:
      username: rewinder
      password: wind
  pg_hba:
  - local all all trust
  - host all all 127.0.0.1/32 trust
  - host replication all 127.0.0.1/32 trust
watchdog:
  mode: "off"
`))

// pgNode is one PostgreSQL server with its Patroni.
type pgNode struct {
	Name, Dir, Bin, API, SQL, Store string
	Auth                            bool
	TTL, Loop, Retry                int

	cmd *exec.Cmd
}

// pgCluster is a PostgreSQL cluster whose nodes agree by way of a store.
type pgCluster struct {
	t     *testing.T
	store *harness.Process
	// owner is who runs PostgreSQL, which refuses to be run by root; nil for the
	// user of the test.
	owner *syscall.Credential
	etcd  *clientv3.Client
	bin   string
	nodes []*pgNode
}

func newPGCluster(t *testing.T, auth bool) *pgCluster {
	t.Helper()
	var flags []string
	if auth {
		// Simple tokens end with the server, and etcd 3.7's answer to a renewal with
		// one is not what this Patroni takes as a reason to log in again.
		flags = []string{harness.JWTFlag(t)}
	}
	owner, err := harness.UserOf("postgres")
	if err != nil {
		t.Fatal(err)
	}
	bin, err := harness.PostgresPrograms()
	if err != nil {
		t.Fatal(err)
	}
	c := &pgCluster{t: t, store: harness.NewProcess(t, flags...), owner: owner, bin: bin}
	if auth {
		c.enableAuth()
	}
	c.etcd = c.connect(auth)
	t.Cleanup(func() { _ = c.etcd.Close() })
	for _, name := range []string{"a", "b"} {
		c.addNode(name, auth)
	}
	return c
}

// enableAuth makes Patroni's user, who has its prefix and nothing else.
func (c *pgCluster) enableAuth() {
	c.t.Helper()
	client := c.connect(false)
	defer client.Close()
	ctx := c.t.Context()
	_, err := client.UserAdd(ctx, "root", "root")
	for _, next := range []func() error{
		func() error { _, err := client.RoleAdd(ctx, "root"); return err },
		func() error { _, err := client.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := client.UserAdd(ctx, "patroni", "pa:ss"); return err },
		func() error { _, err := client.RoleAdd(ctx, "patroni"); return err },
		func() error { _, err := client.UserGrantRole(ctx, "patroni", "patroni"); return err },
		func() error {
			_, err := client.RoleGrantPermission(ctx, "patroni", "/service/", clientv3.GetPrefixRangeEnd("/service/"),
				clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := client.AuthEnable(ctx); return err },
	} {
		if err == nil {
			err = next()
		}
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *pgCluster) connect(auth bool) *clientv3.Client {
	c.t.Helper()
	if !auth {
		return c.store.Client()
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{c.store.Addr}, Username: "root", Password: "root", DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return client
}

// addNode makes the directory and the configuration of a node.
func (c *pgCluster) addNode(name string, auth bool) {
	c.t.Helper()
	// A test's own directory is closed to other users.
	dir, err := os.MkdirTemp("", "latchkey-patroni-")
	if err != nil {
		c.t.Fatal(err)
	}
	n := &pgNode{
		Name: name, Dir: dir, Bin: c.bin, API: harness.FreeAddr(c.t), SQL: harness.FreeAddr(c.t), Store: c.store.Addr,
		Auth: auth, TTL: patroniTTL, Loop: patroniLoop, Retry: patroniRetry,
	}
	c.nodes = append(c.nodes, n)
	c.t.Cleanup(func() {
		c.crash(n)
		if c.t.Failed() {
			text, err := os.ReadFile(n.file("log"))
			c.t.Logf("node %s: %v\n%s", n.Name, err, text)
		}
		_ = os.RemoveAll(dir)
	})
	f, err := os.Create(n.file("patroni.yml"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	if err := patroniConfig.Execute(f, n); err != nil {
		c.t.Fatal(err)
	}
	if c.owner != nil {
		if err := os.Chown(dir, int(c.owner.Uid), int(c.owner.Gid)); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (n *pgNode) file(name string) string { return filepath.Join(n.Dir, name) }

// command is a program as PostgreSQL's owner runs it, without settings of the
// test's environment.
func (c *pgCluster) command(ctx context.Context, n *pgNode, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = n.Dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8", "HOME=" + n.Dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.owner, Setpgid: true}
	return cmd
}

// start starts a node's Patroni, which starts its PostgreSQL.
func (c *pgCluster) start(n *pgNode) {
	c.t.Helper()
	log, err := os.OpenFile(n.file("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	n.cmd = c.command(context.Background(), n, "/usr/bin/patroni", n.file("patroni.yml"))
	n.cmd.Stdout, n.cmd.Stderr = log, log
	if err := n.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
}

// crash kills everything of a node: Patroni with what it runs, then PostgreSQL.
func (c *pgCluster) crash(n *pgNode) {
	c.t.Helper()
	if n.cmd == nil {
		return
	}
	if err := syscall.Kill(-n.cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		c.t.Error(err)
	}
	_ = n.cmd.Wait()
	n.cmd = nil
	for c.killPostgres(n) > 0 {
		continue
	}
}

// killPostgres kills the processes whose home is the node's data directory, which
// are PostgreSQL's, and returns how many it found.
func (c *pgCluster) killPostgres(n *pgNode) (found int) {
	c.t.Helper()
	homes, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		c.t.Error(err)
	}
	for _, home := range homes {
		// A process that has ended has no home.
		if dir, err := os.Readlink(home); err != nil || dir != n.file("data") {
			continue
		}
		found++
		pid, err := strconv.Atoi(strings.Split(home, "/")[2])
		if err != nil {
			c.t.Error(err)
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			c.t.Error(err)
		}
	}
	return found
}

// sql runs a statement on the node of nodes that can write, or on the only one.
func (c *pgCluster) sql(ctx context.Context, statement string, nodes ...*pgNode) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var hosts, ports []string
	for _, n := range nodes {
		host, port, err := net.SplitHostPort(n.SQL)
		if err != nil {
			return "", err
		}
		hosts, ports = append(hosts, host), append(ports, port)
	}
	conn := fmt.Sprintf("host=%s port=%s user=postgres dbname=postgres connect_timeout=2",
		strings.Join(hosts, ","), strings.Join(ports, ","))
	if len(nodes) > 1 {
		conn += " target_session_attrs=read-write"
	}
	out, err := exec.CommandContext(ctx, filepath.Join(c.bin, "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", statement, conn).Output()
	return strings.TrimSpace(string(out)), err
}

// is asks Patroni whether its node has a role: primary, replica, synchronous.
func (n *pgNode) is(ctx context.Context, role string) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.API+"/"+role, http.NoBody)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// await asks until something holds.
func (c *pgCluster) await(what string, limit time.Duration, holds func() bool) {
	c.t.Helper()
	begin := time.Now()
	for !holds() {
		if time.Since(begin) > limit {
			c.t.Fatalf("%s: not within %v", what, limit)
		}
		<-time.After(50 * time.Millisecond)
	}
	c.t.Logf("%s after %v", what, time.Since(begin).Round(time.Millisecond))
}

// repeatedly runs fn again and again, with a pause between, until the returned
// function is called, which waits for its end.
func repeatedly(pause time.Duration, fn func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			fn(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}
