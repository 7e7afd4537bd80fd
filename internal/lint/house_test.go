package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	maxLines     = 600
	maxTestLines = 1200
)

// source is a parsed Go file of the module.
type source struct {
	// name is the file's path from the module's root, with slashes.
	name  string
	lines int
	fset  *token.FileSet
	file  *ast.File
}

func (s *source) test() bool { return strings.HasSuffix(s.name, "_test.go") }

func (s *source) folder() string { return path.Dir(s.name) }

// at says where a node is.
func (s *source) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", s.name, s.fset.Position(n.Pos()).Line)
}

func parseSource(name string, text []byte) (*source, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse source: %w", err)
	}
	return &source{name: name, lines: bytes.Count(text, []byte("\n")), fset: fset, file: file}, nil
}

// root returns the module's root.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// sources returns all Go files below the module's root that were not generated,
// those of its other modules included.
func sources(t *testing.T) []*source {
	t.Helper()
	top := root(t)
	var all []*source
	err := filepath.WalkDir(top, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); file != top && (name == "testdata" || strings.HasPrefix(name, ".")) {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(file) != ".go" {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(top, file)
		if err != nil {
			return err
		}
		s, err := parseSource(filepath.ToSlash(name), text)
		if err != nil {
			return err
		}
		if !ast.IsGenerated(s.file) {
			all = append(all, s)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("found %d Go files", len(all))
	}
	return all
}

// rules are what every file is held against. Each returns its faults.
var rules = []func(*source) []string{tooLong, goroutines, misspelt, clocks, wallClocks, statusErrors, sentinels}

// tooLong finds files that should be two.
func tooLong(s *source) []string {
	most := maxLines
	if s.test() {
		most = maxTestLines
	}
	if s.lines <= most {
		return nil
	}
	return []string{fmt.Sprintf("%s has %d lines, more than %d", s.name, s.lines, most)}
}

// sequential lists the packages that start no goroutine.
var sequential = map[string]bool{"mvcc": true, "lease": true, "internal/keys": true}

// goroutines finds go statements, and calls of Go as WaitGroup and errgroup have
// it, where there must be none.
func goroutines(s *source) []string {
	if s.test() || !sequential[s.folder()] {
		return nil
	}
	var faults []string
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			faults = append(faults, s.at(n)+" starts a goroutine")
		case *ast.CallExpr:
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Go" {
				faults = append(faults, s.at(n)+" starts a goroutine")
			}
		}
		return true
	})
	return faults
}

// invariantWord finds the word that opens an invariant's statement, however it is
// written.
var invariantWord = regexp.MustCompile(`(?mi)^[\s/*]*(invariants?\s*:\s?)`)

// misspelt finds invariants that a search for "Invariant: " would miss.
func misspelt(s *source) []string {
	var faults []string
	for _, group := range s.file.Comments {
		for _, c := range group.List {
			for _, m := range invariantWord.FindAllStringSubmatch(c.Text, -1) {
				if m[1] != "Invariant: " {
					faults = append(faults, fmt.Sprintf("%s writes %q for \"Invariant: \"", s.at(c), m[1]))
				}
			}
		}
	}
	return faults
}

// timeless lists the files that are part of the replicated state.
var timeless = []string{"mvcc/*.go", "lease/*.go", "shard/apply_*.go", "internal/keys/*.go", "auth/change.go", "auth/state.go", "auth/grants.go"}

var clockNames = map[string]bool{
	"Now": true, "Since": true, "Until": true, "Sleep": true, "After": true, "Tick": true,
	"NewTimer": true, "NewTicker": true, "AfterFunc": true,
}

// clocks finds uses of a clock in the replicated state.
func clocks(s *source) []string {
	if s.test() || !matchesAny(timeless, s.name) {
		return nil
	}
	return uses(s, "time", clockNames, "reads a clock with time.")
}

// wallFiles alone know the time of day: tokens that are signed end at one, and who has a lock is
// told one.
var wallFiles = []string{"auth/signed.go", "lock/told.go", "client/line.go"}

// wallNames are methods of time.Time whose results hold no monotonic reading, wallMakers
// functions of package time that return such times.
var (
	wallNames = map[string]bool{
		"Unix": true, "UnixNano": true, "UnixMilli": true, "UnixMicro": true, "UTC": true, "Local": true, "In": true, "AddDate": true,
	}
	wallMakers = map[string]bool{
		"Date": true, "Parse": true, "ParseInLocation": true, "Unix": true, "UnixMilli": true, "UnixMicro": true,
	}
)

// wallClocks finds times that jump when the system's clock is set. What the others
// compute with comes from time.Now and keeps its monotonic reading.
func wallClocks(s *source) []string {
	outside := strings.HasPrefix(s.name, "e2e/") || strings.HasPrefix(s.name, "bench/") || strings.HasPrefix(s.name, "tools/")
	if s.test() || outside || slices.Contains(wallFiles, s.name) {
		return nil
	}
	faults := uses(s, "time", wallMakers, "needs the time of day with time.")
	ast.Inspect(s.file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
			return true
		}
		if wallNames[sel.Sel.Name] {
			faults = append(faults, s.at(sel)+" needs the time of day with "+sel.Sel.Name)
		}
		return true
	})
	return faults
}

// statusFile alone makes gRPC status errors.
const statusFile = "api/errors.go"

var statusNames = map[string]bool{
	"New": true, "Newf": true, "Error": true, "Errorf": true, "ErrorProto": true, "FromProto": true,
}

// statusErrors finds gRPC status errors made elsewhere than in statusFile. fencegrpc is for
// the servers of others.
func statusErrors(s *source) []string {
	if s.test() || s.name == statusFile || s.folder() == "fence/fencegrpc" {
		return nil
	}
	return uses(s, "google.golang.org/grpc/status", statusNames, "makes a gRPC status with status.")
}

// forOperators lists, by package, the exported errors that end a node, keep it from
// starting or tell of a backup: the operator reads them as they are.
var forOperators = map[string]string{
	"internal/datadir": "*", "internal/node": "*", "internal/raftlog": "ErrDamaged", "internal/raft": "ErrDisagree",
	"internal/keys": "ErrNewer", "system": "Err[SINFOV]*", "internal/peer": "ErrRemoved", "internal/backup": "*",
	"internal/recovery": "*",
}

// sentinels finds errors that other packages meet and that don't begin with the name of
// theirs, and others that do.
func sentinels(s *source) []string {
	if s.test() {
		return nil
	}
	var faults []string
	for _, d := range s.file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, spec := range g.Specs {
			v, ok := spec.(*ast.ValueSpec)
			if !ok || len(v.Values) != 1 {
				continue
			}
			text, ok := newError(v.Values[0])
			if !ok {
				continue
			}
			name := v.Names[0].Name
			plain := !ast.IsExported(name) || matchesAny([]string{forOperators[s.folder()]}, name)
			if prefix := s.prefix(); strings.HasPrefix(text, prefix) == plain {
				faults = append(faults, fmt.Sprintf("%s: %s begins with %q: %t", s.at(v), name, prefix, plain))
			}
		}
	}
	return faults
}

// prefix is what errors that other packages compare begin with: the package's name, or that of
// the one that it is internal to.
func (s *source) prefix() string {
	if outer, _, ok := strings.Cut(s.folder(), "/internal/"); ok {
		return path.Base(outer) + ": "
	}
	return s.file.Name.Name + ": "
}

// newError returns the text of an error that errors.New makes.
func newError(e ast.Expr) (text string, ok bool) {
	call, ok := e.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return "", false
	}
	fn, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || fn.Sel.Name != "New" {
		return "", false
	}
	if pkg, ok := fn.X.(*ast.Ident); !ok || pkg.Name != "errors" {
		return "", false
	}
	lit, ok := call.Args[0].(*ast.BasicLit)
	if !ok {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

func matchesAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if ok, err := path.Match(p, name); err == nil && ok {
			return true
		}
	}
	return false
}

// uses finds the names of an imported package that s mentions.
func uses(s *source, importPath string, names map[string]bool, text string) []string {
	local := ""
	for _, imp := range s.file.Imports {
		if p, err := strconv.Unquote(imp.Path.Value); err == nil && p == importPath {
			local = path.Base(importPath)
			if imp.Name != nil {
				local = imp.Name.Name
			}
		}
	}
	var faults []string
	ast.Inspect(s.file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && local != "" && x.Name == local && names[sel.Sel.Name] {
			faults = append(faults, s.at(sel)+" "+text+sel.Sel.Name)
		}
		return true
	})
	return faults
}

func TestHouseRules(t *testing.T) {
	for _, s := range sources(t) {
		for _, rule := range rules {
			for _, fault := range rule(s) {
				t.Error(fault)
			}
		}
	}
}

// Packages that others must understand before they change them have a page.
func TestDesignPages(t *testing.T) {
	top := root(t)
	for _, name := range []string{"shard", "router", "lock", "placement", "mvcc"} {
		dir := filepath.Join(top, name)
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if text, err := os.ReadFile(filepath.Join(dir, "DESIGN.md")); err != nil || len(text) < 500 {
			t.Errorf("%s has no DESIGN.md worth reading: %d bytes, %v", name, len(text), err)
		}
	}
}

func TestRulesFindFaults(t *testing.T) {
	long := "package p\n" + strings.Repeat("\n", maxLines)
	for _, tc := range []struct {
		name, text string
		want       string
	}{
		{"mvcc/a.go", "package mvcc\n", ""},
		{"mvcc/a.go", long, "mvcc/a.go has 601 lines, more than 600"},
		{"mvcc/a_test.go", long, ""},
		{"mvcc/a.go", "package mvcc\nfunc f() { go f() }", "mvcc/a.go:2 starts a goroutine"},
		{"lease/a.go", "package lease\nfunc f(w W) { w.Go(nil) }", "lease/a.go:2 starts a goroutine"},
		{"lease/a_test.go", "package lease\nfunc f() { go f() }", ""},
		{"shard/a.go", "package shard\nfunc f() { go f() }", ""},
		{"api/a.go", "package api\n\n// Invariant: a < b\n", ""},
		{"api/a.go", "package api\n\n// invariant: a < b\n", `api/a.go:3 writes "invariant: " for "Invariant: "`},
		{"api/a.go", "package api\n\n// x\n//\n// Invariants: a < b\n", `api/a.go:5 writes "Invariants: " for "Invariant: "`},
		{"api/a.go", "package api\n\n// a broken invariant: the end\n", ""},
		{"lease/a.go", "package lease\nimport \"time\"\nvar x = time.Now\n", "lease/a.go:3 reads a clock with time.Now"},
		{"lease/a.go", "package lease\nimport t \"time\"\nvar x = t.After(1)\n", "lease/a.go:3 reads a clock with time.After"},
		{"lease/a.go", "package lease\nimport \"time\"\nvar x = time.Second\n", ""},
		{"shard/apply_put.go", "package shard\nimport \"time\"\nvar x = time.Since\n", "shard/apply_put.go:3 reads a clock with time.Since"},
		{"shard/leader.go", "package shard\nimport \"time\"\nvar x = time.Since\n", ""},
		{"shard/a.go", "package shard\nimport \"time\"\nvar x = time.Now().UnixNano()\n", "shard/a.go:3 needs the time of day with UnixNano"},
		{"shard/a.go", "package shard\nimport \"time\"\nvar x = time.Unix(1, 0)\n", "shard/a.go:3 needs the time of day with time.Unix"},
		{"auth/signed.go", "package auth\nimport \"time\"\nvar x = time.Now().Unix()\n", ""},
		{"api/errors.go", "package api\nimport \"google.golang.org/grpc/status\"\nvar x = status.New(1, \"\")\n", ""},
		{
			"api/kv.go", "package api\nimport \"google.golang.org/grpc/status\"\nvar x = status.Errorf\n",
			"api/kv.go:3 makes a gRPC status with status.Errorf",
		},
		{"api/kv.go", "package api\nimport \"google.golang.org/grpc/status\"\nvar x = status.Code\n", ""},
		{"mvcc/a.go", "package mvcc\nvar ErrA = errors.New(\"mvcc: a\")\nvar errB = errors.New(\"b\")\n", ""},
		{"mvcc/a.go", "package mvcc\nvar ErrA = errors.New(\"a\")\n", `mvcc/a.go:2: ErrA begins with "mvcc: ": false`},
		{"mvcc/a.go", "package mvcc\nvar errA = errors.New(\"mvcc: a\")\n", `mvcc/a.go:2: errA begins with "mvcc: ": true`},
		{"internal/raft/a.go", "package raft\nvar ErrDisagree = errors.New(\"a\")\n", ""},
	} {
		s, err := parseSource(tc.name, []byte(tc.text))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, rule := range rules {
			got = append(got, rule(s)...)
		}
		if strings.Join(got, "; ") != tc.want {
			t.Errorf("%s %.40q: %q, want %q", tc.name, tc.text, got, tc.want)
		}
	}
}
