package api

import (
	"encoding/json"
	"errors"
	"io"
)

var errMessageTooLarge = errors.New("message is too large")

// messageReader hands out the JSON values of a stream's body, whole and one after
// the other, each of a bounded size.
type messageReader struct {
	body    io.Closer
	limited *io.LimitedReader
	decoder *json.Decoder
	// max is the most bytes of a value.
	max int64
	// rest is what was decoded and not read yet.
	rest []byte
}

func newMessageReader(body io.ReadCloser, most int64) *messageReader {
	limited := &io.LimitedReader{R: body}
	return &messageReader{body: body, limited: limited, decoder: json.NewDecoder(limited), max: most}
}

// peek returns the first value without taking it from the reader. It waits until
// the client has sent it.
func (m *messageReader) peek() ([]byte, error) {
	err := m.next()
	return m.rest, err
}

// Read reads the rest of a value, or waits for the next.
func (m *messageReader) Read(p []byte) (int, error) {
	if len(m.rest) == 0 {
		if err := m.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

// Close closes the body.
func (m *messageReader) Close() error { return m.body.Close() }

func (m *messageReader) next() error {
	m.limited.N = m.max
	var value json.RawMessage
	if err := m.decoder.Decode(&value); err != nil {
		if m.limited.N <= 0 {
			return errMessageTooLarge
		}
		return err
	}
	m.rest = value
	return nil
}
