package freeport

import "testing"

// Two processes that ask at the same time, and only later listen, never get the same
// address: each hands out ports of its own block, to the last.
func TestProcessesShareNoPort(t *testing.T) {
	var a, b ports
	for _, p := range []*ports{&a, &b} {
		if err := p.take(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.claim.Close() })
	}
	seen := map[int]bool{a.base: true, b.base: true}
	for range block - 1 {
		for _, p := range []*ports{&a, &b} {
			port := p.next()
			if seen[port] || port < first || port >= end {
				t.Fatalf("port %d is handed out twice, or is none of %d to %d", port, first, end)
			}
			seen[port] = true
		}
	}
}

func TestAddrsAreDifferent(t *testing.T) {
	seen := map[string]bool{}
	for range 20 {
		addrs, err := Addrs(5)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			if seen[a] {
				t.Fatalf("%s is handed out twice", a)
			}
			seen[a] = true
		}
	}
}
