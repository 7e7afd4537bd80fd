package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"github.com/gorilla/websocket"
)

const (
	// socketBuffer is the size of each buffer of a websocket.
	socketBuffer = 1024
	// bearer is the subprotocol behind which a page sends its token, and tokenCookie
	// the cookie that may hold one: scripts can set no header of a websocket.
	bearer, tokenCookie = "Bearer", "token"
)

// websockets serves a websocket as if what it sends were the body of a POST: each of its
// messages is one of the body, and each line of the answer is a message to it.
type websockets struct {
	next http.HandlerFunc
	// maxMessage bounds the bytes of a message that comes.
	maxMessage int64
	log        *slog.Logger
}

// ServeHTTP serves a request, or the websocket that it asks for.
func (s *websockets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !websocket.IsWebSocketUpgrade(r) {
		s.next(w, r)
		return
	}
	if err := s.serve(w, r); err != nil {
		s.log.LogAttrs(r.Context(), slog.LevelDebug, "websocket ended", slog.String("error", err.Error()))
	}
}

func (s *websockets) serve(w http.ResponseWriter, r *http.Request) error {
	upgrader := websocket.Upgrader{
		ReadBufferSize: socketBuffer, WriteBufferSize: socketBuffer,
		// access has judged the origin.
		CheckOrigin: func(*http.Request) bool { return true },
	}
	var header http.Header
	if strings.HasPrefix(r.Header.Get("Sec-Websocket-Protocol"), bearer) {
		header = http.Header{"Sec-Websocket-Protocol": {bearer}}
	}
	c, err := upgrader.Upgrade(w, r, header)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // the answer is sent
	c.SetReadLimit(s.maxMessage)

	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	body, messages := io.Pipe()
	reading := make(chan error, 1)
	go func() {
		err := readMessages(c, messages)
		_ = messages.CloseWithError(io.EOF) // never fails
		cancel()
		reading <- err
	}()
	answer := &socketAnswer{c: c, header: make(http.Header)}
	s.next(answer, forwarded(ctx, r, body))
	answer.finish()
	_ = body.Close()
	_ = c.Close() // ends the reader
	return errors.Join(answer.err, <-reading)
}

// readMessages writes what comes over the websocket to messages, one a line, until it ends.
func readMessages(c *websocket.Conn, messages *io.PipeWriter) error {
	for {
		_, message, err := c.ReadMessage()
		if err != nil {
			return err
		}
		if _, err := messages.Write(append(message, '\n')); err != nil {
			return err
		}
	}
}

// forwarded returns the request that a websocket stands for.
func forwarded(ctx context.Context, r *http.Request, body io.ReadCloser) *http.Request {
	post := r.Clone(ctx)
	post.Method, post.Body, post.ContentLength = http.MethodPost, body, -1
	post.Header = make(http.Header)
	for _, name := range []string{"Origin", "Referer"} {
		if v := r.Header.Get(name); v != "" {
			post.Header.Set(name, v)
		}
	}
	token := ""
	if _, rest, ok := strings.Cut(r.Header.Get("Sec-Websocket-Protocol"), bearer+","); ok {
		token = strings.Trim(rest, " ")
	}
	if cookie, err := r.Cookie(tokenCookie); err == nil {
		token = cookie.Value
	}
	if token != "" {
		post.Header.Set("Authorization", bearer+" "+token)
	}
	return post
}

// socketAnswer sends an answer over a websocket, line by line.
type socketAnswer struct {
	c      *websocket.Conn
	header http.Header
	// line is what was written of one.
	line []byte
	err  error
}

var _ http.Flusher = (*socketAnswer)(nil)

// Header returns headers that nobody gets.
func (a *socketAnswer) Header() http.Header { return a.header }

// WriteHeader does nothing: a websocket has no status.
func (a *socketAnswer) WriteHeader(int) {}

// Write sends the lines that are whole.
func (a *socketAnswer) Write(p []byte) (int, error) {
	written := len(p)
	for {
		line, rest, whole := bytes.Cut(p, []byte("\n"))
		a.line = append(a.line, line...)
		if !whole {
			return written, a.err
		}
		a.finish()
		p = rest
	}
}

// Flush does nothing: whole lines are sent at once.
func (a *socketAnswer) Flush() {}

// finish sends the line that was begun.
func (a *socketAnswer) finish() {
	if len(a.line) > 0 && a.err == nil {
		a.err = a.c.WriteMessage(websocket.TextMessage, a.line)
	}
	a.line = a.line[:0]
}
