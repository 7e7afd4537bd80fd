package config

import (
	"cmp"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"
	"sigs.k8s.io/yaml"
)

// differs lists the settings whose default is not etcd's, with the reason.
var differs = map[string]string{
	"cors":            "closed: any web page could use an unprotected node on its reader's machine",
	"log-format":      "for people",
	"initial-cluster": "made from the name and the peer URLs",
	"v2-deprecation":  "does nothing, and etcd leaves it out of the flags that are looked at",
}

// etcdFlags returns etcd's own flags, and those that its main package adds.
func etcdFlags() *flag.FlagSet {
	fs := flag.NewFlagSet("etcd", flag.ContinueOnError)
	embed.NewConfig().AddFlags(fs)
	fs.String("config-file", "", "")
	fs.String("discovery-fallback", "exit", "")
	fs.String("initial-cluster-state", "new", "")
	fs.String("v2-deprecation", "write-only-drop-data", "")
	fs.Bool("version", false, "")
	return fs
}

func TestKnowsEveryFlagOfEtcd(t *testing.T) {
	p := newParser(newConfig())
	etcdFlags().VisitAll(func(f *flag.Flag) {
		o := p.byName[f.Name]
		if o == nil || o.fileOnly {
			t.Errorf("etcd's --%s is unknown", f.Name)
			return
		}
		got := o.value.String()
		if _, ok := differs[f.Name]; ok {
			return
		}
		if got != f.DefValue {
			t.Errorf("--%s defaults to %q, in etcd to %q", f.Name, got, f.DefValue)
		}
		b, ok := f.Value.(interface{ IsBoolFlag() bool })
		if isSwitch := ok && b.IsBoolFlag(); isSwitch != (o.value.kind() == kindSwitch) {
			t.Errorf("--%s may stand without a value: %t, in etcd %t", f.Name, !isSwitch, isSwitch)
		}
	})
}

func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, o := range newParser(newConfig()).options {
		if seen[o.name] {
			t.Errorf("%s is there twice", o.name)
		}
		seen[o.name] = true
		reasons := 0
		for _, s := range []string{o.help, o.idle, o.absent} {
			if s != "" {
				reasons++
			}
		}
		if reasons != 1 {
			t.Errorf("%s needs one of a help text, a reason why it does nothing and one why it stops the start", o.name)
		}
		if o.fileOnly && (o.flagOnly || o.key == noKey) {
			t.Errorf("%s can't be set", o.name)
		}
		for _, s := range []string{o.help, o.idle, o.absent} {
			if strings.HasSuffix(s, ".") || strings.Contains(s, "\n") {
				t.Errorf("%s: %q ends in a full stop or has a line break", o.name, s)
			}
		}
	}
}

// sample returns a text that the option takes; for one that does nothing, or stops the
// start, one that asks for something, and "" where no value does.
func sample(o *option) string {
	if s := o.value.String(); o.help != "" && s != "" && s != "false" {
		return s
	}
	for _, s := range []string{
		"true", "false", "7", "7s", "a", "on", "proxy", "http://127.0.0.1:1", "TLS1.2", "TLS_AES_128_GCM_SHA256", "CompactHashCheck=true",
		`{"token":"a"}`, `{"client":{"endpoints":["a"]}}`,
	} {
		if o.value.set(s) == nil && (o.help != "" || o.demanding()) {
			return s
		}
	}
	return ""
}

// asksNothing are settings that do nothing and of which no value asks for anything.
var asksNothing = map[string]bool{"logger": true, "discovery-fallback": true}

// needsTLS are settings that do nothing for URLs without TLS, as the default is.
var needsTLS = map[string]bool{"cert-file": true, "key-file": true, "client-cert-auth": true}

// Each setting, made alone, earns one warning if it asks for what has no effect here, and
// stops the start if it asks for what decides who belongs together or what is kept; else
// it does neither: on the command line, in the environment and in a file.
func TestOneWarningEach(t *testing.T) {
	for _, o := range newParser(newConfig()).options {
		switch o.name {
		case "config-file", "version", "help", "initial-splits", "initial-cluster":
			continue // lead elsewhere than to a Config, or need another setting
		}
		if o.help == "" {
			made(t, o, o.normal, 0)
			if o.value.kind() != kindSwitch {
				made(t, o, "", 0) // a key without a value
			}
		}
		s, want := sample(o), 0
		if o.idle != "" || needsTLS[o.name] {
			want = 1
		}
		if (s == "") != asksNothing[o.name] {
			t.Errorf("sample for %s: %q", o.name, s)
		}
		if s != "" {
			made(t, o, s, want)
		}
	}
}

// made checks how many warnings the option earns with a value.
func made(t *testing.T, o *option, s string, want int) {
	t.Helper()
	var with []string // what must be set with o
	if o.name == "listen-client-urls" {
		with = []string{"--advertise-client-urls=" + s}
	}
	check := func(setting string, args, environ []string) {
		t.Helper()
		if o.absent == "" || s == o.normal || s == "" {
			checkWarnings(t, want, setting, args, environ)
			return
		}
		c, err := Parse(args, environ)
		var usage *UsageError
		if !errors.As(err, &usage) || err.Error() != setting+" can't be done: "+o.absent {
			t.Errorf("%q, %q: %v, %v, want a refusal of %s with its reason", args, environ, c, err, setting)
		}
	}
	if !o.fileOnly && s != "" {
		for _, dashes := range []string{"--", "-"} {
			check("--"+o.name, append([]string{dashes + o.name + "=" + s}, with...), nil)
		}
		for _, prefix := range envPrefixes {
			name := envName(prefix, o.name)
			check(name, with, []string{name + "=" + s})
		}
	}
	if o.key != noKey && with == nil {
		check(cmp.Or(o.key, o.name), []string{"--config-file", writeFile(t, fileWith(t, o, s))}, nil)
	}
}

func checkWarnings(t *testing.T, want int, setting string, args, environ []string) {
	t.Helper()
	c, err := Parse(args, environ)
	if err != nil {
		t.Errorf("%q, %q: %v", args, environ, err)
		return
	}
	if len(c.Warnings) != want || want == 1 && c.Warnings[0].Setting != setting {
		t.Errorf("%q, %q: warnings %q, want %d about %s", args, environ, c.Warnings, want, setting)
	}
}

// fileWith returns a file that sets o to s.
func fileWith(t *testing.T, o *option, s string) string {
	t.Helper()
	var v any = s
	if o.value.kind() == kindSwitch {
		v = s == "true"
	}
	if strings.HasPrefix(s, "{") && o.fileOnly {
		if err := yaml.Unmarshal([]byte(s), &v); err != nil {
			t.Fatal(err)
		}
	}
	outer, inner, nested := strings.Cut(o.key, ".")
	doc := map[string]any{o.name: v}
	if nested {
		doc = map[string]any{outer: map[string]any{inner: v}}
	}
	b, err := yaml.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "conf.yml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestHelpListsTheTable(t *testing.T) {
	var b strings.Builder
	if err := WriteHelp(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for line := range strings.Lines(text) {
		if len(line) > 80 {
			t.Errorf("line of %d characters: %q", len(line)-1, line)
		}
	}
	entries, _, _ := strings.Cut(text, helpIdle)
	if !strings.Contains(text, helpAbsent) {
		t.Error("the help text does not say what stops the start")
	}
	for _, g := range newConfig().groups() {
		for _, o := range g.options {
			entry := strings.Contains(entries, "\n  --"+o.name+" '") || strings.Contains(entries, "\n  --"+o.name+"\n")
			named := slices.Contains(strings.Fields(text), "--"+o.name)
			shown := !o.fileOnly && g.title != obsolete
			if want := shown && o.help != ""; entry != want {
				t.Errorf("--%s has an entry: %t, want %t", o.name, entry, want)
			}
			if named != shown {
				t.Errorf("--%s is named: %t, want %t", o.name, named, shown)
			}
		}
	}
	if !strings.Contains(text, "  --name 'default'\n        Name of this node") {
		t.Errorf("the help text has no entry for --name:\n%s", text)
	}
}
