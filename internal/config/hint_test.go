package config

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestHints(t *testing.T) {
	for arg, want := range map[string]string{
		"--data-dri=x":                          "unknown flag --data-dri; did you mean --data-dir?",
		"-listen-client-url":                    "unknown flag -listen-client-url; did you mean --listen-client-urls?",
		"--initial_cluster=a":                   "unknown flag --initial_cluster; did you mean --initial-cluster?",
		"--NAME":                                "unknown flag --NAME; did you mean --name?",
		"--vrsion":                              "unknown flag --vrsion; did you mean --version?",
		"--experimental-corrupt-check-time=1h":  "unknown flag --experimental-corrupt-check-time; did you mean --corrupt-check-time?",
		"--experimental-initial-corrupt-check":  "unknown flag --experimental-initial-corrupt-check; did you mean --feature-gates=InitialCorruptCheck=true?",
		"--quite-unlike-anything-that-there-is": "unknown flag --quite-unlike-anything-that-there-is",
		"--x":                                   "unknown flag --x",
		"serve":                                 `unexpected argument "serve"`,
		"data-dir":                              `unexpected argument "data-dir"; did you mean --data-dir?`,
		"vresion":                               `unexpected argument "vresion"; did you mean --version?`,
		"--":                                    `unexpected argument "--"`,
		"--client-cert-allowed-cn=a":            "unknown flag --client-cert-allowed-cn; did you mean --peer-cert-allowed-cn?",
	} {
		if _, err := Parse([]string{arg}, nil); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", arg, err, want)
		}
	}
	c := parse(t, []string{"ETCD_INITIAL_CLUSTR=x", "LATCHKEY_VERSION=1", "ETCD_UNHEARD_OF=1", "ETCD_EXPERIMENTAL_INITIAL_CORRUPT_CHECK=true"})
	var told []string
	for _, w := range c.Warnings {
		told = append(told, w.Setting+": "+w.Text)
	}
	want := `LATCHKEY_VERSION: no setting has this name
ETCD_EXPERIMENTAL_INITIAL_CORRUPT_CHECK: no setting has this name; did you mean ETCD_FEATURE_GATES=InitialCorruptCheck=true?
ETCD_INITIAL_CLUSTR: no setting has this name; did you mean ETCD_INITIAL_CLUSTER?
ETCD_UNHEARD_OF: no setting has this name`
	if got := strings.Join(told, "\n"); got != want {
		t.Errorf("warnings\n%s\nwant\n%s", got, want)
	}
	c = parse(t, nil, "--config-file", writeFile(t, "initial-clustr: a\npeer-transport-security: {cert-fiel: a}\nunheard-of: 1"))
	told = nil
	for _, w := range c.Warnings {
		told = append(told, w.Setting+": "+w.Text)
	}
	want = `initial-clustr: no setting has this key; did you mean initial-cluster?
peer-transport-security.cert-fiel: no setting has this key; did you mean peer-transport-security.cert-file?
unheard-of: no setting has this key`
	if got := strings.Join(told, "\n"); got != want {
		t.Errorf("warnings\n%s\nwant\n%s", got, want)
	}
}

func TestTyping(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"abc", "abd", 1}, {"abc", "xabcy", 2}, {"kitten", "sitting", 3},
	} {
		if got := typing(tc.a, tc.b); got != tc.want {
			t.Errorf("%q to %q: %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}

func TestCommit(t *testing.T) {
	for _, tc := range []struct {
		settings []debug.BuildSetting
		want     string
	}{
		{nil, "unknown"},
		{[]debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "false"}}, "abc"},
		{[]debug.BuildSetting{{Key: "vcs.modified", Value: "true"}, {Key: "vcs.revision", Value: "abc"}}, "abc-modified"},
	} {
		if got := commitOf(tc.settings); got != tc.want {
			t.Errorf("commit %q, want %q", got, tc.want)
		}
	}
}
