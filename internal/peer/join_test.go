package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A node without an id asks to join, and is told what the one that it asked says, or why not.
func TestJoin(t *testing.T) {
	var heard Joining
	known := uint64(5)
	n := start(t, func(c *Config) {
		c.ClusterID = func() uint64 { return known }
		c.Join = func(_ context.Context, j Joining) ([]byte, error) {
			heard = j
			if j.Version < 5 {
				return nil, errors.New("too old")
			}
			return []byte("node 4"), nil
		}
	})
	door := []string{fmt.Sprint("http://", n.doors[2].Addr())}
	ask := func(change func(c *Config, j *Joining)) ([]byte, error) {
		c, j := Config{Secret: []byte("secret"), Log: slog.New(slog.DiscardHandler)}, Joining{PeerURLs: []string{"http://x:1"}, Instance: "disk of 4", Version: 5}
		shortly(&c)
		change(&c, &j)
		return Join(t.Context(), c, door, j)
	}
	got, err := ask(func(*Config, *Joining) {})
	if err != nil || string(got) != "node 4" || heard.Instance != "disk of 4" || !slices.Equal(heard.PeerURLs, []string{"http://x:1"}) {
		t.Errorf("told %q, %v; heard %+v", got, err, heard)
	}
	var refused *RefusedError
	if _, err = ask(func(_ *Config, j *Joining) { j.Version = 4 }); !errors.As(err, &refused) || !strings.Contains(err.Error(), "too old") {
		t.Errorf("a node that is too old: %v", err)
	}
	if _, err = ask(func(c *Config, _ *Joining) { c.Secret = []byte("another") }); !errors.As(err, &refused) || refused.Kind != RefusedCluster {
		t.Errorf("a node that does not know the secret: %v", err)
	}
	known = 0
	if _, err = ask(func(*Config, *Joining) {}); !errors.As(err, &refused) {
		t.Errorf("a node that has no cluster answers: %v", err)
	}
}

// Whoever is forgotten is cut off at once, in both directions, and not let in again.
func TestForget(t *testing.T) {
	var mu sync.Mutex
	barred := uint64(0)
	var told refusals
	n := start(t, func(c *Config) {
		if c.Node == 1 {
			c.Refused = told.add
		}
		c.Admit = func(h Hello) error {
			mu.Lock()
			defer mu.Unlock()
			if h.Node == barred {
				return ErrBarred
			}
			return nil
		}
	})
	n.echo()
	call := func(from, to uint64) error {
		_, err := n.meshes[from].Call(t.Context(), to, []byte("x"))
		return err
	}
	until(t, "the streams", func() bool { return call(1, 2) == nil && call(2, 1) == nil && call(3, 2) == nil })
	mu.Lock()
	barred = 1
	mu.Unlock()
	n.meshes[2].Forget(1)
	until(t, "the refusal", func() bool { e := told.from(2); return e != nil && e.Kind == RefusedBarred })
	if n.meshes[1].Reached(2) {
		t.Error("a node that was forgotten has a stream")
	}
	if err := call(1, 2); err == nil {
		t.Error("a node that was forgotten was answered")
	}
	if err := call(3, 2); err != nil {
		t.Errorf("a call of another node: %v", err)
	}
}
