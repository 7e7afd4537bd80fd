package main

import (
	"os"
	"strings"
	"testing"
)

func TestZooConfigs(t *testing.T) {
	dir := t.TempDir()
	files, err := zooConfigs([]string{"h:1", "h:2", "h:3", "h:4", "h:5", "h:6"}, dir)
	if err != nil || len(files) != 2 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	text, err := os.ReadFile(files[1])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"dataDir=" + dir + "/n2\n", "clientPort=4\n", "server.1=h:2:3\nserver.2=h:5:6\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if id, err := os.ReadFile(dir + "/n2/myid"); err != nil || string(id) != "2" {
		t.Errorf("myid is %q, %v", id, err)
	}
}

func TestInstalledSaysWhatIsMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	servers, notes := installed(t.TempDir())
	if len(servers) != 0 || len(notes) != 2 || !strings.Contains(notes[0], "not installed") || !strings.Contains(notes[1], "not installed") {
		t.Errorf("servers %v, notes %q", servers, notes)
	}
}

// TestNodesAreEnded has a node that never answers.
func TestNodesAreEnded(t *testing.T) {
	r := running{close: func() error { return nil }}
	r, err := r.launch("n1", []string{"sleep", "600"}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cpu(r.nodes[0].pid); err != nil {
		t.Errorf("a node that runs uses nothing: %v", err)
	}
	if _, err := r.launch("n2", []string{"/none"}, t.TempDir()); err == nil {
		t.Fatal("what is not there was started")
	}
	if _, err := cpu(r.nodes[0].pid); err == nil {
		t.Error("the node outlived the start of the cluster that failed")
	}
}
