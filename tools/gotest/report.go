package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// event is one line of go test's JSON; see "go doc test2json".
type event struct {
	Action, Package, Test, Output string
}

// key names the test of an event, or its package.
type key struct{ pkg, test string }

// reporter collects output until it is known whether it is worth printing.
type reporter struct {
	w      *bytes.Buffer // what is to be printed next
	output map[key]*bytes.Buffer
	// passed counts packages. failed says that something failed.
	passed int
	failed bool
	// skipped lists the tests that were skipped, with what they said.
	skipped []string
}

// report prints the tests that r tells of to w, and whether all of them ran and
// passed.
func report(r io.Reader, w io.Writer) (ok bool, err error) {
	p := &reporter{w: new(bytes.Buffer), output: map[key]*bytes.Buffer{}}
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			p.line(line)
			if _, err := p.w.WriteTo(w); err != nil {
				return false, fmt.Errorf("write report: %w", err)
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return false, fmt.Errorf("read events: %w", err)
		}
	}
	ok = p.finish()
	if _, err := p.w.WriteTo(w); err != nil {
		return false, fmt.Errorf("write report: %w", err)
	}
	return ok, nil
}

func (p *reporter) line(line []byte) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil || e.Action == "" {
		p.w.Write(line) // the go command's own words
		return
	}
	k := key{e.Package, e.Test}
	switch e.Action {
	case "output":
		p.buffer(k).WriteString(e.Output)
	case "build-output":
		p.w.WriteString(e.Output)
	case "build-fail":
		p.failed = true
	case "pass", "skip", "fail":
		p.done(k, e.Action)
	}
}

func (p *reporter) buffer(k key) *bytes.Buffer {
	b := p.output[k]
	if b == nil {
		b = new(bytes.Buffer)
		p.output[k] = b
	}
	return b
}

// done prints what is left to say of a test or package.
func (p *reporter) done(k key, action string) {
	b := p.buffer(k)
	delete(p.output, k)
	switch {
	case action == "fail":
		p.failed = true
		p.w.Write(b.Bytes())
	case k.test == "":
		if action == "pass" {
			p.passed++
		}
		p.closing(b.String())
	case action == "skip":
		p.skipped = append(p.skipped, fmt.Sprintf("%s %s: %s", k.pkg, k.test, said(b.String())))
	}
}

// closing prints the line that go test closes a package with.
func (p *reporter) closing(output string) {
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "?   \t") || strings.HasPrefix(line, "\t") && strings.Contains(line, "coverage:") {
			p.w.WriteString(line)
		}
	}
}

// said returns what a skipped test printed, without go test's own lines.
func said(output string) string {
	var words []string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") && line != "" {
			words = append(words, line)
		}
	}
	return strings.Join(words, " ")
}

// finish prints the end of the report and whether all is well.
func (p *reporter) finish() bool {
	for k, b := range p.output { // begun and never ended
		p.failed = true
		fmt.Fprintf(p.w, "%s %s did not end\n%s", k.pkg, k.test, b)
	}
	for _, s := range p.skipped {
		fmt.Fprintf(p.w, "skipped: %s\n", s)
	}
	if p.failed || len(p.skipped) > 0 || p.passed == 0 {
		fmt.Fprintln(p.w, "FAIL")
		return false
	}
	return true
}
