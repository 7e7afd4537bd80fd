package peer

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
)

// refusals collects what a node was told.
type refusals struct {
	mu  sync.Mutex
	all []*RefusedError
}

func (r *refusals) add(e *RefusedError) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, e)
}

func (r *refusals) from(node uint64) *RefusedError {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.all {
		if e.Node == node {
			return e
		}
	}
	return nil
}

func TestRefusedHandshakes(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(c *Config) // of node 1
		kind   RefusalKind
		text   string
	}{
		{"token", func(c *Config) { c.Secret = []byte("another") }, RefusedCluster, "--initial-cluster-token"},
		{"cluster", func(c *Config) { c.ClusterID = func() uint64 { return 6 } }, RefusedCluster, "cluster 6, this node to cluster 5"},
		{"unknown", func(c *Config) { c.Node = 4 }, RefusedOther, "node 4 is not known"},
		{"disk", func(c *Config) { c.Instance = "new disk" }, RefusedBarred, "another data directory"},
		{"address", func(c *Config) {
			urls := c.URLs
			c.URLs = func(uint64) []string { return urls(3) }
		}, RefusedOther, "looks for node 2 here, but this is node 3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var told refusals
			n := start(t, func(c *Config) {
				first := c.Node == 1
				c.ClusterID = func() uint64 { return 5 }
				c.Admit = func(h Hello) error {
					switch {
					case h.Node > 3:
						return fmt.Errorf("node %x is not known here", h.Node)
					case h.Instance != fmt.Sprint("disk of ", h.Node):
						return fmt.Errorf("%w: it has another data directory", ErrBarred)
					}
					return nil
				}
				if first {
					c.Refused = told.add
					tc.change(c)
				}
			})
			n.echo()
			if _, err := n.meshes[1].Call(t.Context(), 2, []byte("x")); !errors.Is(err, ErrUnsent) {
				t.Errorf("a call of a node that was not let in: %v", err)
			}
			until(t, "the refusal", func() bool { return told.from(2) != nil })
			e := told.from(2)
			if e.Kind != tc.kind || !strings.Contains(e.Error(), tc.text) {
				t.Errorf("refused as %s: %v", e.Kind, e)
			}
			if _, err := n.meshes[3].Call(t.Context(), 2, []byte("x")); err != nil {
				t.Errorf("a call of another node: %v", err)
			}
			// The other way round it is refused by whoever calls.
			if _, err := n.meshes[2].Call(t.Context(), 1, []byte("x")); !errors.Is(err, ErrUnsent) && tc.name != "address" {
				t.Errorf("a call to a node that would not be let in: %v", err)
			}
			told.mu.Lock()
			defer told.mu.Unlock()
			if len(told.all) != 1 {
				t.Errorf("told %d times", len(told.all))
			}
		})
	}
}

// Each side of a stream says to the other what it knows of the members, and of that other.
func TestWhatNodesSayOfTheMembers(t *testing.T) {
	var mu sync.Mutex
	heard := make(map[[2]uint64]Membership)
	says := func(from, to uint64) Membership {
		return Membership{Version: from, URLs: []string{fmt.Sprint("http://", from)}, Other: fmt.Sprint("disk of ", to)}
	}
	n := start(t, func(c *Config) {
		self := c.Node
		c.Membership = func(other uint64) Membership { return says(self, other) }
		c.Admit = func(h Hello) error {
			mu.Lock()
			defer mu.Unlock()
			heard[[2]uint64{h.Node, self}] = h.Membership
			return nil
		}
	})
	n.echo()
	if _, err := n.meshes[1].Call(t.Context(), 2, []byte("x")); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, way := range [][2]uint64{{1, 2}, {2, 1}} {
		if got, want := heard[way], says(way[0], way[1]); !reflect.DeepEqual(got, want) {
			t.Errorf("%d said %+v to %d, want %+v", way[0], got, way[1], want)
		}
	}
}
