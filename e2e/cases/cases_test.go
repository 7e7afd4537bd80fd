package cases

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// lastCase is the highest number of each topic's cases; the numbers are odd.
var lastCase = map[byte]int{
	'W': 21, 'L': 21, 'K': 29, 'T': 17, 'G': 11, 'A': 7, 'M': 7, 'O': 13, 'C': 11, 'P': 5, 'S': 7,
}

// testNames returns the tests that a package has.
func testNames(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(dir), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				names[f.Name.Name] = true
			}
		}
	}
	return names
}

// CASES.md lists every case once, with tests that exist or what it waits for.
func TestCasesTable(t *testing.T) {
	table, err := os.ReadFile("CASES.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`(?m)^\| ([A-Z]\d\d) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$`)
	endToEnd := regexp.MustCompile("`e2e/[a-z]+\\.Test")
	// Tests of whole nodes in one process run with several layouts where that matters.
	whole := regexp.MustCompile("`(e2e/[a-z]+|internal/node)\\.Test")
	named := regexp.MustCompile("`([a-z0-9/]+)\\.(Test\\w+)`")
	tests := make(map[string]map[string]bool)
	seen := make(map[string]bool)
	for _, m := range row.FindAllStringSubmatch(string(table), -1) {
		id, test, shards := m[1], m[3], m[4]
		if seen[id] {
			t.Errorf("%s is listed twice", id)
		}
		seen[id] = true
		refs := named.FindAllStringSubmatch(test, -1)
		for _, ref := range refs {
			dir, name := ref[1], ref[2]
			if tests[dir] == nil {
				tests[dir] = testNames(t, dir)
			}
			if !tests[dir][name] {
				t.Errorf("%s names the test %s of %s, which does not exist", id, name, dir)
			}
		}
		if len(refs) != strings.Count(test, "`")/2 {
			t.Errorf("%s: %s is not a list of tests", id, test)
		}
		waits, four := strings.HasPrefix(test, "waits for "), strings.Contains(shards, "4")
		if !waits && (four && !whole.MatchString(test) || !four && endToEnd.MatchString(test)) {
			t.Errorf("%s: %s shards, although end-to-end tests run with 1 and 4", id, shards)
		}
		switch {
		case waits != (shards == "-"):
			t.Errorf("%s: %s shards and %q", id, shards, test)
		case !waits && len(refs) == 0:
			t.Errorf("%s has no test and does not say what it waits for", id)
		}
	}
	for topic, last := range lastCase {
		for n := 1; n <= last; n += 2 {
			id := fmt.Sprintf("%c%02d", topic, n)
			if !seen[id] {
				t.Errorf("%s is not listed", id)
			}
			delete(seen, id)
		}
	}
	for id := range seen {
		t.Errorf("%s is no case", id)
	}
	if lines := strings.Count(string(table), "\n| ") - strings.Count(string(table), "\n| id |"); lines != len(row.FindAll(table, -1)) {
		t.Errorf("%d rows, %d can be read", lines, len(row.FindAll(table, -1)))
	}
}
