package api

import (
	"context"
	"net"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// TestMaxConcurrentStreams checks that the bound holds for each connection by
// itself.
func TestMaxConcurrentStreams(t *testing.T) {
	r := start(t, func(c *Config) { c.MaxConcurrentStreams = 2 })
	first, second := openWatch(t, r), openWatch(t, r)
	for _, w := range []*watcher{first, second} {
		w.create(&pb.WatchCreateRequest{Key: []byte("k")}, 0, 1)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := r.kv.Range(ctx, &pb.RangeRequest{Key: []byte("k")})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a third call of the connection: %v", err)
	}
	other, err := grpc.NewClient(r.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	defer other.Close()
	_, err = pb.NewKVClient(other).Range(t.Context(), &pb.RangeRequest{Key: []byte("k")})
	check(t, err)
}

// TestTooManyPings checks that a client that pings too often is sent away.
func TestTooManyPings(t *testing.T) {
	r := start(t, func(c *Config) { c.PingMinTime = time.Hour })
	c, err := net.Dial("tcp", r.addr)
	check(t, err)
	defer c.Close()
	check(t, c.SetDeadline(time.Now().Add(time.Minute)))
	_, err = c.Write([]byte(http2.ClientPreface))
	check(t, err)
	framer := http2.NewFramer(c, c)
	check(t, framer.WriteSettings())
	for i := range byte(10) {
		if framer.WritePing(false, [8]byte{i}) != nil {
			break // sent away already
		}
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("no word of too many pings: %v", err)
		}
		if away, ok := frame.(*http2.GoAwayFrame); ok {
			if away.ErrCode != http2.ErrCodeEnhanceYourCalm || string(away.DebugData()) != "too_many_pings" {
				t.Errorf("sent away with %v %q", away.ErrCode, away.DebugData())
			}
			return
		}
	}
}

// TestReaderOfNothing checks that a client that reads nothing holds up neither
// writers nor other watchers, and gets every event when it reads at last.
func TestReaderOfNothing(t *testing.T) {
	r := start(t, nil)
	lazy, busy := openWatch(t, r), openWatch(t, r)
	lazy.create(&pb.WatchCreateRequest{Key: []byte("k")}, 0, 1)
	busy.create(&pb.WatchCreateRequest{Key: []byte("k")}, 0, 1)
	const n = 500
	value := string(make([]byte, 10<<10))
	events := func(w *watcher) {
		t.Helper()
		for next := int64(2); next < n+2; {
			for _, ev := range w.recv().GetEvents() {
				if got := ev.GetKv().GetModRevision(); got != next {
					t.Fatalf("event of %d, want %d", got, next)
				}
				next++
			}
		}
	}
	for range n {
		r.put(t, "k", value)
	}
	events(busy)
	events(lazy)
}
