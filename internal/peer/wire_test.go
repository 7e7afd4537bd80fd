package peer

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"
)

func TestFramesComeInOrder(t *testing.T) {
	n := start(t, nil)
	got := make(chan string, 1000)
	n.meshes[2].Wire("data").Listen(func(from uint64, frame []byte) { got <- fmt.Sprint(from, " ", len(frame)) }, nil)
	s, err := n.meshes[1].Wire("data").Connect(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range cap(got) {
		if err := s.Send(make([]byte, 1+i*7)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range cap(got) {
		if g, want := <-got, fmt.Sprint(1, " ", 1+i*7); g != want {
			t.Fatalf("frame %d: %s, want %s", i, g, want)
		}
	}
	if _, err := n.meshes[1].Wire("system").Connect(t.Context(), 2); err == nil {
		t.Error("a stream to a host that is not there")
	}
}

func TestBrokenFramesAreNoticed(t *testing.T) {
	n := start(t, shortly)
	n.meshes[2].Wire("data").Listen(func(uint64, []byte) {}, nil)
	send := func() error {
		s, err := n.meshes[1].Wire("data").Connect(t.Context(), 2)
		if err != nil {
			return err
		}
		defer s.Close()
		thaw := n.doors[2].freeze()
		defer thaw()
		for {
			if err := s.Send(make([]byte, 1<<20)); err != nil {
				return err
			}
		}
	}
	if err := send(); !errors.Is(err, errSilent) {
		t.Errorf("a node that stands still: %v", err)
	}
}

func TestSnapshotPartsAreAcknowledged(t *testing.T) {
	n := start(t, nil)
	var whole bytes.Buffer
	n.meshes[2].Wire("data").Listen(nil, func(_ uint64, frame []byte) bool {
		<-time.After(time.Millisecond)
		if string(frame) == "bad" {
			return false
		}
		whole.Write(frame)
		return true
	})
	s, err := n.meshes[1].Wire("data").ConnectSnapshot(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if err := s.Send(bytes.Repeat([]byte{byte(i)}, 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	if whole.Len() != 2_000_000 {
		t.Errorf("%d bytes arrived before the stream was closed", whole.Len())
	}
	s, err = n.meshes[1].Wire("data").ConnectSnapshot(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Send([]byte("bad")); !errors.Is(err, errChunk) {
		t.Errorf("a part that was refused: %v", err)
	}
	if err := s.Send([]byte("good")); err == nil {
		t.Error("a part behind one that was refused was taken")
	}
}

func TestDeafWireHandsNothingOver(t *testing.T) {
	n := start(t, nil)
	w := n.meshes[2].Wire("data")
	w.Listen(func(uint64, []byte) {}, nil)
	s, err := n.meshes[1].Wire("data").Connect(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w.StopListening()
	until(t, "the stream's end", func() bool { return s.Send([]byte("x")) != nil })
}

// Connections that say nothing keep nobody else from being let in.
func TestSilentConnectionsBlockNobody(t *testing.T) {
	n := start(t, func(c *Config) { c.Timeout = time.Second })
	n.echo()
	for range 50 {
		c, err := net.Dial("tcp", n.doors[2].Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	if _, err := n.meshes[1].Call(t.Context(), 2, []byte("x")); err != nil {
		t.Error(err)
	}
	n.doors[2].mu.Lock()
	count := len(n.doors[2].conns)
	n.doors[2].mu.Unlock()
	if count < 50 {
		t.Errorf("%d connections were let in", count)
	}
	until(t, "the end of the silent connections", func() bool {
		n.doors[2].mu.Lock()
		defer n.doors[2].mu.Unlock()
		return len(n.doors[2].conns) < 5
	})
}
