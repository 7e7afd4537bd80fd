package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// redisLock is a key that is set if nobody has, for some time, and deleted by whoever set
// it: the lock that Redis' documentation describes for one server. It has no queue and no
// fencing token.
type redisLock struct {
	conn    net.Conn
	replies *bufio.Reader
	name    string
	token   string
}

// askAgain is how long a client waits before it asks again for a lock that another holds.
const askAgain = 5 * time.Millisecond

func newRedisLock(ctx context.Context, endpoint, name string) (*redisLock, error) {
	c, err := dialStore(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	return &redisLock{conn: c, replies: bufio.NewReader(c), name: name, token: rand.Text()}, nil
}

func (l *redisLock) Lock(ctx context.Context) error {
	return within(ctx, l.conn, func() error {
		for {
			reply, err := l.do("SET", l.name, l.token, "NX", "PX", strconv.Itoa(ttl*1000))
			if err != nil || reply == "+OK" {
				return err
			}
			t := time.NewTimer(askAgain)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return ctx.Err()
			}
		}
	})
}

func (l *redisLock) Unlock(ctx context.Context) error {
	const ifOwn = `if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end`
	return within(ctx, l.conn, func() error {
		reply, err := l.do("EVAL", ifOwn, "1", l.name, l.token)
		if err == nil && reply != ":1" {
			return fmt.Errorf("lock is not held: %s", reply)
		}
		return err
	})
}

// do sends a command and returns the reply's first line, which is all that there is of
// those that locks have.
func (l *redisLock) do(words ...string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	if _, err := io.WriteString(l.conn, b.String()); err != nil {
		return "", err
	}
	reply, err := l.replies.ReadString('\n')
	if err != nil {
		return "", err
	}
	reply = strings.TrimSuffix(reply, "\r\n")
	if strings.HasPrefix(reply, "-") {
		return "", fmt.Errorf("redis: %s", reply[1:])
	}
	return reply, nil
}
