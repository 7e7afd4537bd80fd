package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

// served returns the client's end of a connection whose other end is served.
func served(t *testing.T, serve func(net.Conn) error) net.Conn {
	t.Helper()
	client, server := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- serve(server) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Errorf("server: %v", err)
		}
		_ = client.Close()
	})
	return client
}

// TestRedisLock has a lock that is taken at first, and lost before it is given up for the
// second time.
func TestRedisLock(t *testing.T) {
	var asked []string
	conn := served(t, func(c net.Conn) error {
		requests := bufio.NewReader(c)
		for _, reply := range []string{"$-1", "+OK", ":1", ":0", "-ERR full"} {
			var words []string
			line, err := requests.ReadString('\n')
			for range int(line[1] - '0') {
				if _, err := requests.ReadString('\n'); err != nil {
					return err
				}
				word, err := requests.ReadString('\n')
				if err != nil {
					return err
				}
				words = append(words, strings.TrimSpace(word))
			}
			if err != nil {
				return err
			}
			asked = append(asked, strings.Join(words, " "))
			if _, err := io.WriteString(c, reply+"\r\n"); err != nil {
				return err
			}
		}
		return nil
	})
	l := &redisLock{conn: conn, replies: bufio.NewReader(conn), name: "n", token: "t"}
	if err := l.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(t.Context()); err == nil {
		t.Error("a lock that was lost was given up")
	}
	if err := l.Lock(t.Context()); err == nil || !strings.Contains(err.Error(), "ERR full") {
		t.Errorf("the server's error is %v", err)
	}
	if asked[0] != "SET n t NX PX 60000" || asked[1] != asked[0] || !strings.HasSuffix(asked[2], "1 n t") {
		t.Errorf("asked %q", asked)
	}
}

// zooFrame is what a server sends: a header and a body.
func zooFrame(xid, code int32, body []byte) []byte {
	frame := binary.BigEndian.AppendUint32(nil, uint32(xid))
	frame = binary.BigEndian.AppendUint64(frame, 0)
	frame = binary.BigEndian.AppendUint32(frame, uint32(code))
	return zooBytes(nil, append(frame, body...))
}

func zooNodes(names ...string) []byte {
	body := binary.BigEndian.AppendUint32(nil, uint32(len(names)))
	for _, n := range names {
		body = zooBytes(body, []byte(n))
	}
	return body
}

// TestZooLock has two nodes before the client's. The nearer one goes between the question
// for the nodes and that for it, the other while the client waits, before it even has the
// answer that it is watched.
func TestZooLock(t *testing.T) {
	var paths []string
	deletion := zooBytes(make([]byte, 8), []byte("/l/n-1"))
	conn := served(t, func(c net.Conn) error {
		for xid, reply := range [][]byte{
			zooFrame(1, 0, zooBytes(nil, []byte("/l/n-3"))),
			zooFrame(2, 0, zooNodes("n-4", "n-2", "n-3", "n-1")),
			zooFrame(3, zooNoNode, nil),
			zooFrame(4, 0, zooNodes("n-3", "n-1")),
			append(zooFrame(zooWatchXid, 0, deletion), zooFrame(5, 0, nil)...),
			zooFrame(6, 0, zooNodes("n-3")),
			zooFrame(7, 0, nil),
		} {
			var size [4]byte
			if _, err := io.ReadFull(c, size[:]); err != nil {
				return err
			}
			request := make([]byte, binary.BigEndian.Uint32(size[:]))
			if _, err := io.ReadFull(c, request); err != nil {
				return err
			}
			if int(binary.BigEndian.Uint32(request)) != xid+1 {
				return errors.New("requests are not numbered")
			}
			path, _, err := zooString(request[8:])
			if err != nil {
				return err
			}
			paths = append(paths, path)
			if _, err := c.Write(reply); err != nil {
				return err
			}
		}
		return nil
	})
	l := &zooLock{conn: conn, folder: "/l", deleted: make(map[string]bool)}
	if err := l.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(paths, " "); got != "/l/n- /l /l/n-2 /l /l/n-1 /l /l/n-3" {
		t.Errorf("asked for %s", got)
	}
}

func TestZooStringOfTornReplies(t *testing.T) {
	whole := append(zooBytes(nil, []byte("node")), 7)
	if s, rest, err := zooString(whole); s != "node" || !bytes.Equal(rest, []byte{7}) || err != nil {
		t.Errorf("string %q, rest %v, %v", s, rest, err)
	}
	for n := range 8 {
		if _, _, err := zooString(whole[:n]); err == nil {
			t.Errorf("%d bytes are a string", n)
		}
	}
}
