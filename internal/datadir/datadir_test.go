package datadir

import (
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
)

func configOn(fs vfs.FS) Config {
	return Config{FS: fs, Path: "data", New: Identity{NodeID: 7, DeploymentID: 8, LogShards: 2}}
}

// open opens a directory as a node does that goes on to serve.
func open(t *testing.T, c Config) *Dir {
	t.Helper()
	d, err := Open(c)
	if err == nil {
		err = d.Finish()
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func closed(t *testing.T, d *Dir) {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestIdentityStays(t *testing.T) {
	fs := vfs.NewMem()
	d := open(t, configOn(fs))
	first := d.Identity()
	closed(t, d)
	c := configOn(fs)
	c.New = Identity{NodeID: 70, DeploymentID: 80, LogShards: 20}
	d = open(t, c)
	defer closed(t, d)
	if !cmp.Equal(d.Identity(), first) {
		t.Errorf("identity became %+v, was %+v", d.Identity(), first)
	}
	if first.NodeID != 7 || first.LogShards != 2 || first.Instance == "" || !first.Whole {
		t.Errorf("identity %+v", first)
	}
}

func TestInstancesDiffer(t *testing.T) {
	a, b := open(t, configOn(vfs.NewMem())), open(t, configOn(vfs.NewMem()))
	defer closed(t, a)
	defer closed(t, b)
	if a.Identity().Instance == b.Identity().Instance {
		t.Error("two directories are one instance")
	}
}

func TestRefused(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(fs vfs.FS, c *Config) error
		want   error
		says   string
	}{
		{"other number of logs", func(_ vfs.FS, c *Config) error { c.LogShards = 3; return nil }, ErrLogShards, "with 2"},
		{"log gone", func(fs vfs.FS, _ *Config) error { return fs.RemoveAll("data/raft") }, ErrTorn, "data/raft"},
		{"state gone", func(fs vfs.FS, _ *Config) error { return fs.RemoveAll("data/state") }, ErrTorn, "data/state"},
		{"identity gone", func(fs vfs.FS, _ *Config) error { return fs.RemoveAll("data/node.json") }, ErrTorn, "node.json"},
		{"log of another", func(fs vfs.FS, _ *Config) error { return write(fs, "data/raft/INSTANCE", "other") }, ErrTorn, "data/raft"},
		{"garbled identity", func(fs vfs.FS, _ *Config) error { return write(fs, "data/node.json", "{") }, ErrTorn, "node.json"},
		{"later format", func(fs vfs.FS, _ *Config) error { return write(fs, "data/node.json", `{"format":3}`) }, ErrFormat, "a later version"},
		{"later format of one to load", func(fs vfs.FS, _ *Config) error { return write(fs, "data/node.json", `{"format":4,"restore":{}}`) }, ErrFormat, "a later version"},
		{"format of one to load", func(fs vfs.FS, _ *Config) error {
			return write(fs, "data/node.json", `{"format":3,"restore":{},"whole":true}`)
		}, ErrFormat, "a later version"},
		{"earlier format", func(fs vfs.FS, _ *Config) error { return write(fs, "data/node.json", `{"format":1}`) }, ErrFormat, "make-mirror"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fs := vfs.NewMem()
			closed(t, open(t, configOn(fs)))
			c := configOn(fs)
			if err := tc.change(fs, &c); err != nil {
				t.Fatal(err)
			}
			_, err := Open(c)
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, want %v saying %q", err, tc.want, tc.says)
			}
			// A refusal must not keep the directory.
			if _, err := Open(c); errors.Is(err, ErrInUse) {
				t.Error("the lock is kept")
			}
		})
	}
}

// No node is made where etcd's data are, and nothing is touched there.
func TestEtcdsData(t *testing.T) {
	for _, tc := range []struct{ part, path, former string }{
		{"data/member/snap/db", "data", ""},
		{"data/member/wal/0.wal", "data", "elsewhere"},
		{"n1.etcd/member/snap/db", "n1.latchkey", "n1.etcd"},
	} {
		fs := vfs.NewMem()
		if err := errors.Join(fs.MkdirAll(fs.PathDir(tc.part), 0o700), write(fs, tc.part, "etcd")); err != nil {
			t.Fatal(err)
		}
		before := fs.String()
		c := configOn(fs)
		c.Path, c.Former = tc.path, tc.former
		for range 2 {
			_, err := Open(c)
			if !errors.Is(err, ErrEtcd) || !strings.Contains(err.Error(), fs.PathDir(tc.part)) || !strings.Contains(err.Error(), "make-mirror") {
				t.Errorf("%s: %v, want a refusal that says how to move", tc.part, err)
			}
		}
		if after := fs.String(); after != before {
			t.Errorf("%s: the refusal changed files:\n%s\nbefore:\n%s", tc.part, after, before)
		}
		// Elsewhere, asked for by name, it starts.
		c.Path, c.Former = "other", ""
		closed(t, open(t, c))
	}
}

// What is a node already stays one, with etcd's data beside it.
func TestNodeBesideEtcdsData(t *testing.T) {
	fs := vfs.NewMem()
	closed(t, open(t, configOn(fs)))
	if err := errors.Join(fs.MkdirAll("data/member/snap", 0o700), write(fs, "data/member/snap/db", "etcd")); err != nil {
		t.Fatal(err)
	}
	closed(t, open(t, configOn(fs)))
}

func TestInUse(t *testing.T) {
	fs := vfs.NewMem()
	d := open(t, configOn(fs))
	if _, err := Open(configOn(fs)); !errors.Is(err, ErrInUse) {
		t.Errorf("second process: %v", err)
	}
	closed(t, d)
	closed(t, open(t, configOn(fs)))
}

// unlockable is a file system on which no lock is to be had.
type unlockable struct {
	vfs.FS
	err error
}

// Lock fails.
func (u unlockable) Lock(string) (io.Closer, error) { return nil, u.err }

// Only another process that has the lock is called one.
func TestLockThatIsNotHad(t *testing.T) {
	const writable = "must be able to write there"
	for _, tc := range []struct {
		err     error
		inUse   bool
		says    string
		saysNot string
	}{
		{&fs.PathError{Op: "open", Path: "data/LOCK", Err: syscall.EACCES}, false, writable, ""},
		{&fs.PathError{Op: "open", Path: "data/LOCK", Err: syscall.EROFS}, false, writable, ""},
		{&fs.PathError{Op: "open", Path: "data/LOCK", Err: syscall.EISDIR}, false, "is a directory", writable},
		{&fs.PathError{Op: "open", Path: "data/LOCK", Err: syscall.EMFILE}, false, "too many open files", writable},
		{syscall.ENOLCK, false, "no locks available", writable},
		{syscall.EAGAIN, true, "", writable},
		{syscall.EACCES, true, "", writable},
		{errors.New("lock held by current process"), true, "", writable},
	} {
		_, err := Open(configOn(unlockable{vfs.NewMem(), tc.err}))
		if err == nil || errors.Is(err, ErrInUse) != tc.inUse || !errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.says) ||
			tc.saysNot != "" && strings.Contains(err.Error(), tc.saysNot) || strings.Contains(err.Error(), "another process") != tc.inUse {
			t.Errorf("%v: %v, want another process: %t, and %q", tc.err, err, tc.inUse, tc.says)
		}
	}
	// The operating system's own.
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, lockFile), 0o700); err != nil {
		t.Fatal(err)
	}
	c := configOn(vfs.Default)
	c.Path = dir
	if _, err := Open(c); err == nil || errors.Is(err, ErrInUse) {
		t.Errorf("a lock file that can't be made: %v", err)
	}
}

func write(fs vfs.FS, path, content string) error {
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte(content))
	return errors.Join(err, f.Close())
}

// A first start that was cut anywhere is finished by the next, whatever is left of what was not synced.
func TestFirstStartCutAnywhere(t *testing.T) {
	for seed := range uint64(20) {
		cutFirstStarts(t, vfs.CrashCloneCfg{UnsyncedDataPercent: int(seed) * 5, RNG: rand.New(rand.NewPCG(seed, 0))})
	}
}

func cutFirstStarts(t *testing.T, cfg vfs.CrashCloneCfg) {
	t.Helper()
	for ops := 1; ; ops++ {
		fs := vfs.NewCrashableMem()
		cut := &cutFS{FS: fs, left: ops}
		d, err := Open(configOn(cut))
		if err == nil {
			err = d.Finish()
		}
		if err == nil {
			closed(t, d)
			if ops < 5 {
				t.Fatalf("a first start of %d steps: nothing was cut", ops)
			}
			return
		}
		crashed := fs.CrashClone(cfg)
		d, err = Open(configOn(crashed))
		if err == nil {
			err = d.Finish()
		}
		if err != nil {
			t.Fatalf("cut after %d steps, with %d%% of what was not synced: %v", ops, cfg.UnsyncedDataPercent, err)
		}
		closed(t, d)
	}
}

// What a first start has made is removed if it was cut before the end, and stays
// afterwards.
func TestUnfinishedFilesAreRemoved(t *testing.T) {
	fs := vfs.NewMem()
	for _, finish := range []bool{false, true, true} {
		d, err := Open(configOn(fs))
		if err != nil {
			t.Fatal(err)
		}
		torn := d.Raft("data") + ".torn"
		_, err = fs.Stat(torn)
		if found, want := err == nil, d.Identity().Whole; found != want {
			t.Errorf("file of an earlier start: there %v, want %v", found, want)
		}
		if err := write(fs, torn, "half"); err != nil {
			t.Fatal(err)
		}
		if finish {
			if err := d.Finish(); err != nil {
				t.Fatal(err)
			}
		}
		closed(t, d)
	}
}

// A first start that was cut decides nothing.
func TestUnfinishedIdentityIsMadeAnew(t *testing.T) {
	fs := vfs.NewMem()
	c := configOn(fs)
	d, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	first := d.Identity()
	closed(t, d)
	c.New.Nodes = []Member{{ID: 9, Name: "n", PeerURLs: []string{"http://a:1"}}}
	d = open(t, c)
	if d.Identity().Instance == first.Instance || !cmp.Equal(d.Identity().Nodes, c.New.Nodes) {
		t.Errorf("the second start found %+v", d.Identity())
	}
	closed(t, d)
}

// A node that joins asks for the same instance until its first start is over, and never again.
func TestJoiningKeepsItsInstance(t *testing.T) {
	fs := vfs.NewMem()
	c := configOn(fs)
	var asked []string
	var refused error
	c.Join = func(instance string) (Identity, error) {
		asked = append(asked, instance)
		return Identity{NodeID: 9, DeploymentID: 8, LogShards: 2, Replica: 4}, refused
	}
	refused = io.ErrUnexpectedEOF
	if _, err := Open(c); !errors.Is(err, refused) {
		t.Fatalf("nobody let it join: %v", err)
	}
	refused = nil
	d, err := Open(c) // and it is cut
	if err != nil {
		t.Fatal(err)
	}
	closed(t, d)
	d = open(t, c)
	if id := d.Identity(); id.NodeID != 9 || id.Replica != 4 || len(asked) != 3 || asked[0] == "" || asked[1] != asked[0] || asked[2] != asked[0] || id.Instance != asked[0] {
		t.Errorf("identity %+v, asked for %q", id, asked)
	}
	closed(t, d)
	d = open(t, c)
	defer closed(t, d)
	if len(asked) != 3 {
		t.Error("a node that has joined asks again")
	}
	// An earlier program would take its replicas for another node's.
	if format := d.Identity().Format; format != 3 {
		t.Errorf("format %d", format)
	}
}

// The directory, and those above it that had to be made, are there after a power
// cut.
func TestDirectorySurvivesPowerCut(t *testing.T) {
	for _, path := range []string{"data", "/data", "/var/lib/data"} {
		fs := vfs.NewCrashableMem()
		c := configOn(fs)
		c.Path = path
		d := open(t, c)
		first := d.Identity()
		c.FS = fs.CrashClone(vfs.CrashCloneCfg{})
		closed(t, d)
		d = open(t, c)
		if !cmp.Equal(d.Identity(), first) {
			t.Errorf("%s: identity became %+v, was %+v", path, d.Identity(), first)
		}
		closed(t, d)
	}
}

// Until a backup is loaded its directory has a format that programs refuse which would not load it.
func TestFormatToLoad(t *testing.T) {
	fs := vfs.NewMem()
	err := Make(fs, "data", func(io.Writer) error { return nil }, func([]byte) Identity { return Identity{NodeID: 7, Restore: &Restore{}} })
	if err != nil {
		t.Fatal(err)
	}
	format := func() int {
		d := &Dir{fs: fs, path: "data"}
		if _, err := d.read(); err != nil {
			t.Fatal(err)
		}
		return d.id.Format
	}
	for _, finish := range []bool{false, true} {
		if got := format(); got != 3 {
			t.Errorf("format %d before the backup was loaded", got)
		}
		d, err := Open(configOn(fs))
		if err != nil {
			t.Fatal(err)
		}
		if got := format(); got != 3 {
			t.Errorf("format %d while the backup is loaded", got)
		}
		if finish {
			if err := d.Finish(); err != nil {
				t.Fatal(err)
			}
		}
		closed(t, d)
	}
	if got := format(); got != 2 {
		t.Errorf("format %d when the backup has been loaded", got)
	}
	closed(t, open(t, configOn(fs)))
}

// A directory that can't be made whole is not made, wherever that ends.
func TestMakeThatFails(t *testing.T) {
	identity := func([]byte) Identity { return Identity{NodeID: 7, Restore: &Restore{}} }
	saved := func(w io.Writer) error { _, err := w.Write([]byte("backup")); return err }
	for _, there := range []bool{false, true} {
		for ops := 1; ; ops++ {
			fs := vfs.NewMem()
			if there {
				if err := fs.MkdirAll("data", 0o700); err != nil {
					t.Fatal(err)
				}
			}
			before := fs.String()
			err := Make(&cutFS{FS: fs, left: ops}, "data", saved, identity)
			if err == nil {
				if ops < 4 {
					t.Fatalf("%d steps: nothing failed", ops)
				}
				break
			}
			if after := fs.String(); !errors.Is(err, errCut) || after != before {
				t.Errorf("after %d steps: %v, left\n%s", ops, err, after)
			}
		}
	}
	failed := errors.New("failed")
	fs := vfs.NewMem()
	if err := Make(fs, "data", func(io.Writer) error { return failed }, identity); !errors.Is(err, failed) {
		t.Errorf("a backup that can't be written: %v", err)
	}
	if err := Make(fs, "data", saved, identity); err != nil {
		t.Errorf("a second try: %v", err)
	}
	if err := Make(fs, "data", saved, identity); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("over what is there: %v", err)
	}
}

var errCut = errors.New("power cut")

// cutFS fails every change after a number of them.
type cutFS struct {
	vfs.FS
	left int
}

func (c *cutFS) step() error {
	c.left--
	if c.left < 0 {
		return errCut
	}
	return nil
}

func (c *cutFS) Create(name string, w vfs.DiskWriteCategory) (vfs.File, error) {
	if err := c.step(); err != nil {
		return nil, err
	}
	return c.FS.Create(name, w)
}

func (c *cutFS) Rename(from, to string) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.FS.Rename(from, to)
}

func (c *cutFS) MkdirAll(dir string, mode os.FileMode) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.FS.MkdirAll(dir, mode)
}

func (c *cutFS) OpenDir(name string) (vfs.File, error) {
	if err := c.step(); err != nil {
		return nil, err
	}
	return c.FS.OpenDir(name)
}
