package main

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestParse(t *testing.T) {
	for _, name := range workNames() {
		if _, err := parse([]string{"-work", name}, io.Discard); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, args := range [][]string{{"-work", "sleep"}, {"-clients", "0"}, {"-locks", "0"}, {"-batch", "0"}, {"-limit", "-1"}, {"-for", "0s"}, {"-over", "0"}, {"-among", "-1"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("parsed %q", args)
		}
	}
}

func TestWorksWithStores(t *testing.T) {
	for _, c := range []struct {
		store, work string
		want        bool
	}{
		{"etcd", "put", true},
		{"grpc", "list", true},
		{"http", "waiters", true},
		{"client", "held", true},
		{"redis", "handoff", true},
		{"grpc", "put", false},
		{"client", "list", false},
		{"redis", "held", false},
		{"zookeeper", "list", false},
		{"paper", "lock", false},
	} {
		if _, err := parse([]string{"-store", c.store, "-work", c.work}, io.Discard); (err == nil) != c.want {
			t.Errorf("%s with %s: %v", c.work, c.store, err)
		}
	}
}

func TestEndpointsOf(t *testing.T) {
	three := []string{"a", "b", "c"}
	if got := (options{endpoints: three, clients: 3}).endpointsOf(4); !slices.Equal(got, []string{"b"}) {
		t.Errorf("connection 4 of many clients uses %v", got)
	}
	if got := (options{endpoints: three, clients: 2}).endpointsOf(0); !slices.Equal(got, three) {
		t.Errorf("a connection of few clients uses %v", got)
	}
}

// TestPlacesLieOnAllShards has as many clients as a figure and counts on which of 32
// shards their keys are.
func TestPlacesLieOnAllShards(t *testing.T) {
	name, err := naming()
	if err != nil {
		t.Fatal(err)
	}
	shards := make(map[byte]int)
	for i := range 512 {
		key := name(i, "key")
		place := strings.IndexByte("0123456789abcdef", key[6])*16 + strings.IndexByte("0123456789abcdef", key[7])
		shards[byte(place/8)]++
	}
	for shard, n := range shards {
		if n != 16 {
			t.Errorf("shard %d has %d of 512 keys", shard, n)
		}
	}
	if len(shards) != 32 {
		t.Errorf("keys are on %d shards", len(shards))
	}
}

func TestReport(t *testing.T) {
	m := &meter{}
	m.add(time.Now()) // before the meter is on
	if err := m.report(io.Discard, options{}, time.Second); err == nil {
		t.Error("the report of nothing is no error")
	}
	for i := range 101 {
		m.times = append(m.times, time.Duration(101-i)*time.Millisecond)
	}
	var out bytes.Buffer
	if err := m.report(&out, options{work: "put", clients: 3}, 2*time.Second); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "work=put clients=3 ops=101 ops/s=50 p50=51ms p99=100ms max=101ms\n"; got != want {
		t.Errorf("report is %q, want %q", got, want)
	}
}

func TestFanCountsItsOwnEvents(t *testing.T) {
	f := fan{own: map[string]bool{"mine": true}}
	m := &meter{on: true}
	events := []*clientv3.Event{
		{Type: clientv3.EventTypePut, Kv: &mvccpb.KeyValue{Key: []byte("mine"), Value: []byte("5")}},
		{Type: clientv3.EventTypePut, Kv: &mvccpb.KeyValue{Key: []byte("other"), Value: []byte("no time")}},
		{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte("mine")}},
	}
	if err := f.count(time.Now(), events, m); err != nil || len(m.times) != 1 {
		t.Errorf("counted %d events, %v", len(m.times), err)
	}
	if err := f.count(time.Now(), []*clientv3.Event{{Kv: &mvccpb.KeyValue{Key: []byte("mine"), Value: []byte("x")}}}, m); err == nil {
		t.Error("an event without a time is no error")
	}
}

// The keys of a transaction lie on as many shards as it asks for.
func TestKeysLieApart(t *testing.T) {
	for _, over := range []int{2, 4} {
		for i := range 300 {
			shards := make(map[byte]bool)
			for j := range over {
				shards[place(apart(i, j, over))/(places/4)] = true
			}
			if place(apart(i, 0, over)) != place(i) || len(shards) != over {
				t.Errorf("client %d writes to %d of 4 shards, expected %d", i, len(shards), over)
			}
		}
	}
}
