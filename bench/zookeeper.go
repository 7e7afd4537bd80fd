package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"
)

// zooLock is ZooKeeper's recipe of a lock: each client creates a node that is sequential
// and ephemeral, the lowest holds, and each of the others watches the one before it.
// The session sends nothing while it waits, so that no wait may be longer than ttl.
type zooLock struct {
	conn   net.Conn
	xid    int32
	folder string
	// node is what the client has created, its name within the folder.
	node string
	// deleted are the nodes whose deletion the server has told, and nobody asked for yet.
	deleted map[string]bool
}

// The types of requests, and what is particular in replies, as ZooKeeper numbers them.
const (
	zooCreate      = 1
	zooDelete      = 2
	zooExists      = 3
	zooGetChildren = 8

	zooWatchXid   = -1
	zooNoNode     = -101
	zooNodeExists = -110

	zooEphemeralSequential = 3
)

// zooError is what a server answers instead of a result.
type zooError int32

func (e zooError) Error() string { return fmt.Sprintf("zookeeper: error %d", int32(e)) }

// newZooLock opens a session. A server may close a connection instead, and a client is
// meant to try again.
func newZooLock(ctx context.Context, endpoint, name string) (l *zooLock, err error) {
	const tries = 50
	for range tries {
		if l, err = openZooLock(ctx, endpoint, name); !errors.Is(err, io.EOF) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return l, err
}

func openZooLock(ctx context.Context, endpoint, name string) (*zooLock, error) {
	c, err := dialStore(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	l := &zooLock{conn: c, folder: "/" + strings.ReplaceAll(name, "/", "-"), deleted: make(map[string]bool)}
	// Protocol 0, nothing seen, timeout, no session, no password.
	hello := binary.BigEndian.AppendUint32(nil, 0)
	hello = binary.BigEndian.AppendUint64(hello, 0)
	hello = binary.BigEndian.AppendUint32(hello, ttl*1000)
	hello = binary.BigEndian.AppendUint64(hello, 0)
	hello = append(zooBytes(hello, make([]byte, 16)), 0)
	if err := l.send(hello); err != nil {
		return nil, err
	}
	if _, err := l.receive(); err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	if _, err := l.create(l.folder, 0); err != nil && !errors.Is(err, zooError(zooNodeExists)) {
		return nil, fmt.Errorf("create folder: %w", err)
	}
	return l, nil
}

func (l *zooLock) Lock(ctx context.Context) error { return within(ctx, l.conn, l.lock) }

func (l *zooLock) lock() error {
	path, err := l.create(l.folder+"/n-", zooEphemeralSequential)
	if err != nil {
		return err
	}
	l.node = path[len(l.folder)+1:]
	for {
		before, err := l.before()
		if err != nil || before == "" {
			return err
		}
		path := l.folder + "/" + before
		if _, err := l.ask(zooExists, append(zooBytes(nil, []byte(path)), 1)); errors.Is(err, zooError(zooNoNode)) {
			continue
		} else if err != nil {
			return err
		}
		for !l.deleted[path] {
			frame, err := l.receive()
			if err != nil {
				return err
			}
			if err := l.notice(frame); err != nil {
				return err
			}
		}
		delete(l.deleted, path)
	}
}

func (l *zooLock) Unlock(ctx context.Context) error {
	anyVersion := int32(-1)
	request := binary.BigEndian.AppendUint32(zooBytes(nil, []byte(l.folder+"/"+l.node)), uint32(anyVersion))
	return within(ctx, l.conn, func() error {
		_, err := l.ask(zooDelete, request)
		return err
	})
}

// create returns the path of the node that it creates, open to everybody.
func (l *zooLock) create(path string, flags uint32) (string, error) {
	const allPermissions = 31
	body := zooBytes(zooBytes(nil, []byte(path)), nil)
	body = binary.BigEndian.AppendUint32(body, 1)
	body = binary.BigEndian.AppendUint32(body, allPermissions)
	body = zooBytes(zooBytes(body, []byte("world")), []byte("anyone"))
	reply, err := l.ask(zooCreate, binary.BigEndian.AppendUint32(body, flags))
	if err != nil {
		return "", err
	}
	created, _, err := zooString(reply)
	return created, err
}

// before returns the node before the client's own, empty if there is none.
func (l *zooLock) before() (string, error) {
	reply, err := l.ask(zooGetChildren, append(zooBytes(nil, []byte(l.folder)), 0))
	if err != nil {
		return "", err
	}
	if len(reply) < 4 {
		return "", io.ErrUnexpectedEOF
	}
	count := binary.BigEndian.Uint32(reply)
	reply = reply[4:]
	var nodes []string
	for range count {
		var node string
		if node, reply, err = zooString(reply); err != nil {
			return "", err
		}
		if node < l.node {
			nodes = append(nodes, node)
		}
	}
	if len(nodes) == 0 {
		return "", nil
	}
	return slices.Max(nodes), nil
}

// ask sends a request and returns what its reply says.
func (l *zooLock) ask(kind uint32, body []byte) ([]byte, error) {
	l.xid++
	request := binary.BigEndian.AppendUint32(nil, uint32(l.xid))
	request = binary.BigEndian.AppendUint32(request, kind)
	if err := l.send(append(request, body...)); err != nil {
		return nil, err
	}
	for {
		frame, err := l.receive()
		if err != nil {
			return nil, err
		}
		// The header is the request's number, the transaction's and the error.
		const header = 4 + 8 + 4
		if len(frame) < header {
			return nil, io.ErrUnexpectedEOF
		}
		if int32(binary.BigEndian.Uint32(frame)) != l.xid {
			if err := l.notice(frame); err != nil {
				return nil, err
			}
			continue
		}
		if code := int32(binary.BigEndian.Uint32(frame[12:])); code != 0 {
			return nil, zooError(code)
		}
		return frame[header:], nil
	}
}

// notice keeps what a watch tells.
func (l *zooLock) notice(frame []byte) error {
	// Behind the header there are the event's type, the session's state and the path.
	const header, types = 4 + 8 + 4, 4 + 4
	if len(frame) < header+types || int32(binary.BigEndian.Uint32(frame)) != zooWatchXid {
		return errors.New("zookeeper: neither an answer nor an event")
	}
	path, _, err := zooString(frame[header+types:])
	if err != nil {
		return err
	}
	l.deleted[path] = true
	return nil
}

// send sends a frame.
func (l *zooLock) send(frame []byte) error {
	_, err := l.conn.Write(zooBytes(nil, frame))
	return err
}

// receive returns the next frame.
func (l *zooLock) receive() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(l.conn, size[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(l.conn, frame)
	return frame, err
}

// zooBytes appends bytes with their length before them.
func zooBytes(to, b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(to, uint32(len(b))), b...)
}

// zooString returns the string at the head of a reply, and what follows it.
func zooString(reply []byte) (s string, rest []byte, err error) {
	if len(reply) < 4 {
		return "", nil, io.ErrUnexpectedEOF
	}
	n, rest := binary.BigEndian.Uint32(reply), reply[4:]
	if uint64(n) > uint64(len(rest)) {
		return "", nil, io.ErrUnexpectedEOF
	}
	return string(rest[:n]), rest[n:], nil
}
