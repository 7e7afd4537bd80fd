package harness

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Page runs the commands of a page in docs as they stand there, in one folder, with the server
// and etcdctl as programs. A block of commands begins with "```sh NAME".
type Page struct {
	// Dir is the folder, Bin has the programs, and Env is added to the environment.
	Dir, Bin string
	Env      []string

	tb       testing.TB
	blocks   map[string]string
	run      map[string]bool
	replacer *strings.Replacer
}

var shBlock = regexp.MustCompile("(?ms)^( *)```sh([^\n]*)\n(.*?)^ *```$")

// OpenPage reads a page. Each of replace's pairs says what another text stands for in the test, such as
// an address.
func OpenPage(tb testing.TB, name string, replace ...string) *Page {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	Must(tb, name, err)
	p := &Page{Dir: tb.TempDir(), Bin: tb.TempDir(), tb: tb, blocks: make(map[string]string), run: make(map[string]bool), replacer: strings.NewReplacer(replace...)}
	for _, m := range shBlock.FindAllStringSubmatch(string(text), -1) {
		name := strings.TrimSpace(m[2])
		if name == "" || p.blocks[name] != "" {
			tb.Fatalf("commands have no name, or %q twice:\n%s", name, m[3])
		}
		p.blocks[name] = strings.ReplaceAll("\n"+m[3], "\n"+m[1], "\n")
	}
	server, err := Server()
	Must(tb, "server", err)
	Must(tb, server, os.Symlink(server, filepath.Join(p.Bin, "latchkey")))
	tools, err := Etcdctl()
	p.Env = []string{"PATH=" + p.Bin + ":" + Must(tb, tools, err) + ":" + os.Getenv("PATH")}
	return p
}

// command is a block's, with further pairs to replace.
func (p *Page) command(ctx context.Context, block string, replace []string) (*exec.Cmd, *bytes.Buffer) {
	p.tb.Helper()
	script, ok := p.blocks[block]
	if !ok {
		p.tb.Fatalf("no commands are called %q", block)
	}
	p.run[block] = true
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(script, replace[i]) {
			p.tb.Fatalf("the commands %q have no %q:\n%s", block, replace[i], script)
		}
		script = strings.ReplaceAll(script, replace[i], replace[i+1])
	}
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", p.replacer.Replace(script))
	cmd.Dir = p.Dir
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "LATCHKEY_") && !strings.HasPrefix(v, "ETCDCTL_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, p.Env...)
	// What it starts ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

// Run runs the commands of a block to their end, which must be a success, and returns what they
// print. Of each of replace's pairs the first text must be in the block, and the second takes its place.
func (p *Page) Run(block string, replace ...string) string {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(p.tb.Context(), 2*LongWait)
	defer cancel()
	cmd, out := p.command(ctx, block, replace)
	if err := cmd.Run(); err != nil {
		p.tb.Fatalf("commands %q: %v: %s", block, err, out)
	}
	return out.String()
}

// RunAgain is Run that tries again what fails, as the page says to do.
func (p *Page) RunAgain(block string, replace ...string) string {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(p.tb.Context(), LongWait)
	defer cancel()
	for {
		cmd, out := p.command(ctx, block, replace)
		err := cmd.Run()
		if err == nil {
			return out.String()
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			p.tb.Fatalf("commands %q: %v: %s", block, err, out)
		}
	}
}

// Start runs the commands of a block, which start a server and end with it. stop ends it as a service
// manager does, and fails the test unless it ends well; what was not stopped is at the test's end.
func (p *Page) Start(block string, replace ...string) (stop func()) {
	p.tb.Helper()
	return p.Launch(block, replace...).Stop
}

// Started is a server that commands of a page have started.
type Started struct {
	p       *Page
	block   string
	pid     int
	waited  chan error
	ended   bool
	release func()
}

// Launch is Start for a server that ends in another way than by a service manager.
func (p *Page) Launch(block string, replace ...string) *Started {
	p.tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd, out := p.command(ctx, block, replace)
	// The shell gets the signal, too, and waits for the server.
	cmd.Args[len(cmd.Args)-1] = "trap : TERM\n" + cmd.Args[len(cmd.Args)-1]
	Must(p.tb, block, cmd.Start())
	s := &Started{p: p, block: block, pid: cmd.Process.Pid, waited: make(chan error, 1), release: cancel}
	go func() { s.waited <- cmd.Wait() }()
	p.tb.Cleanup(func() {
		if !s.ended {
			s.Kill()
		}
		if p.tb.Failed() {
			p.tb.Logf("commands %q printed:\n%s", block, out)
		}
	})
	return s
}

// Stop ends the server as a service manager does, and fails the test unless it ends well.
func (s *Started) Stop() {
	s.p.tb.Helper()
	err := syscall.Kill(-s.pid, syscall.SIGTERM)
	if err == nil {
		err = s.Wait()
	}
	if err != nil {
		s.p.tb.Errorf("commands %q end with %v", s.block, err)
	}
}

// Kill ends the server as a crash would.
func (s *Started) Kill() {
	_ = syscall.Kill(-s.pid, syscall.SIGKILL) // it may have ended
	_ = s.Wait()                              // which is no good end
}

// Wait waits for the server to end by itself, and returns how it did.
func (s *Started) Wait() error {
	s.ended = true
	defer s.release()
	select {
	case err := <-s.waited:
		return err
	case <-time.After(LongWait):
		return errStillThere
	}
}

// errStillThere is returned for a server that does not end.
var errStillThere = errors.New("not ended")

// AllRun fails the test if the page has commands that were not run.
func (p *Page) AllRun() {
	p.tb.Helper()
	for name := range p.blocks {
		if !p.run[name] {
			p.tb.Errorf("no test runs the commands %q", name)
		}
	}
}
