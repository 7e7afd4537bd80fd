package peer

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The handshake comes before anything else on a connection, TLS apart:
//
//	caller  preface, opening    whom it wants to reach, who it says it is, which versions of the
//	                            protocol it speaks, a nonce
//	called  challenge           who it is, a nonce; proved
//	caller  greeting            its data directory, what the stream is for; proved
//	called  decision            its data directory, or why the caller is not let in; proved
//
// A proof is the HMAC-SHA256, by the cluster's secret, of who speaks as what and of all that
// both have said so far: ids, nonces and the message itself. So it is of no use on any other
// connection, in the other direction or to another node. Who relays the bytes of two nodes
// connects these two with each other and nobody else; on a connection without TLS they can also
// change what is said after the handshake. The caller says nothing but ids before the other
// side has proved itself, and the called side nothing but its id.

// preface begins a connection. What follows may differ from one protocol to the next.
const preface = "latchkey peer \r\n"

const (
	// maxGreeting bounds a message of the handshake.
	maxGreeting = 16 << 10
	// nonceBytes is the length of a nonce.
	nonceBytes = 32
)

// role says what a proof is for.
type role string

const (
	asCalled   role = "called"
	asCaller   role = "caller"
	asDecision role = "verdict"
)

// opening is the first message of a handshake. It is not proved.
type opening struct {
	// versions are those that the caller speaks.
	versions
	// Node is the caller and To the node that is to be reached.
	Node  uint64 `json:"node"`
	To    uint64 `json:"to"`
	Nonce []byte `json:"nonce"`
}

// challenge answers an opening.
type challenge struct {
	// Protocol is the version that both speak from now on, 0 in a refusal.
	Protocol int    `json:"protocol,omitempty"`
	Node     uint64 `json:"node"`
	Nonce    []byte `json:"nonce"`
	// Refused is empty for a caller that may go on.
	Refused RefusalKind `json:"refused,omitempty"`
	Text    string      `json:"text,omitempty"`
}

// handshake is one side of a handshake.
type handshake struct {
	conn   net.Conn
	secret []byte
	// said is all that both sides have said, proofs included.
	said []byte
}

// send sends a message.
func (h *handshake) send(v any) error { return h.write("", v) }

// prove sends a message with a proof.
func (h *handshake) prove(as role, v any) error { return h.write(as, v) }

func (h *handshake) write(as role, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode handshake: %w", err)
	}
	if len(b) > maxGreeting {
		return fmt.Errorf("%w: %d bytes in a handshake", ErrTooLarge, len(b))
	}
	from := len(h.said)
	h.said = append(binary.BigEndian.AppendUint32(h.said, uint32(len(b))), b...) //nolint:gosec // checked above
	if as != "" {
		h.said = append(h.said, h.proof(as)...)
	}
	if _, err := h.conn.Write(h.said[from:]); err != nil {
		return fmt.Errorf("shake hands: %w", err)
	}
	return nil
}

// receive reads a message.
func (h *handshake) receive(v any) error {
	b, err := h.message()
	if err != nil {
		return err
	}
	return decodeGreeting(b, v)
}

// receiveProved reads a message with a proof, and reports whether that is right. Where it is
// not, nothing is decoded.
func (h *handshake) receiveProved(as role, v any) (bool, error) {
	b, err := h.message()
	if err != nil {
		return false, err
	}
	want := h.proof(as)
	got := make([]byte, len(want))
	if err := h.read(got); err != nil {
		return false, err
	}
	if !hmac.Equal(got, want) {
		return false, nil
	}
	return true, decodeGreeting(b, v)
}

func decodeGreeting(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%w: %w", errStream, err)
	}
	return nil
}

// message reads the bytes of one message.
func (h *handshake) message() ([]byte, error) {
	var size [4]byte
	if err := h.read(size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxGreeting {
		return nil, fmt.Errorf("%w: %d bytes in a handshake", errStream, n)
	}
	b := make([]byte, n)
	return b, h.read(b)
}

func (h *handshake) read(b []byte) error {
	if _, err := io.ReadFull(h.conn, b); err != nil {
		return fmt.Errorf("shake hands: %w", err)
	}
	h.said = append(h.said, b...)
	return nil
}

// proof returns what only a node of the cluster can say now.
func (h *handshake) proof(as role) []byte {
	mac := hmac.New(sha256.New, h.secret)
	mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(as)))) //nolint:gosec // a constant's length
	mac.Write([]byte(as))
	mac.Write(h.said)
	return mac.Sum(nil)
}

func nonce() []byte {
	b := make([]byte, nonceBytes)
	_, _ = rand.Read(b) // never fails
	return b
}

// bound ends what a handshake waits for when ctx ends. stop lifts that again, and reports
// whether ctx had not ended before.
func bound(ctx context.Context, conn net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
}

// call makes the caller's side of the handshake on a new connection.
func (m *Mesh) call(conn net.Conn, g greeting) error {
	h := &handshake{conn: conn, secret: m.cfg.Secret}
	if _, err := conn.Write([]byte(preface)); err != nil {
		return fmt.Errorf("shake hands: %w", err)
	}
	o := opening{versions: spoken, Node: m.cfg.Node, To: g.To, Nonce: nonce()}
	if err := h.send(&o); err != nil {
		return err
	}
	var c challenge
	proved, err := h.receiveProved(asCalled, &c)
	switch {
	case err != nil:
		return err
	case !proved:
		return &RefusedError{Node: g.To, Kind: RefusedCluster, Text: anotherToken}
	case c.Refused != "":
		return &RefusedError{Node: g.To, Kind: c.Refused, Text: c.Text, Proved: true}
	case spoken.common(versions{Protocol: c.Protocol}) != c.Protocol || c.Protocol == 0:
		return fmt.Errorf("%w: it wants to speak version %d", errStream, c.Protocol)
	case c.Node != g.To && g.Purpose != asksToJoin:
		return &RefusedError{Node: g.To, Kind: RefusedOther, Text: wrongNode(g.To, c.Node), Proved: true}
	}
	g.Hello = m.hello(g.To)
	if err := h.prove(asCaller, &g); err != nil {
		return err
	}
	var v decision
	if proved, err = h.receiveProved(asDecision, &v); err != nil {
		return err
	}
	if !proved {
		return fmt.Errorf("%w: a decision without a proof", errStream)
	}
	if g.Purpose == asksToJoin && v.Refused == "" {
		g.Join.admission = v.Admission
		return nil
	}
	return m.meet(g.To, &v)
}

// answer makes the called side of the handshake. On success the caller is counted among the
// nodes with inbound connections.
func (m *Mesh) answer(ctx context.Context, conn net.Conn) (*greeting, error) {
	h := &handshake{conn: conn, secret: m.cfg.Secret}
	first := make([]byte, len(preface))
	if _, err := io.ReadFull(conn, first); err != nil {
		return nil, err
	}
	if string(first) != preface {
		return nil, errProtocol
	}
	var o opening
	if err := h.receive(&o); err != nil {
		return nil, err
	}
	if o.Node == 0 && o.To == 0 && m.cfg.JoinSecret != nil {
		h.secret = m.cfg.JoinSecret
	}
	c := challenge{Protocol: spoken.common(o.versions), Node: m.cfg.Node, Nonce: nonce()}
	refusal := m.judgeOpening(&o)
	if refusal != nil {
		c.Refused, c.Text = refusal.Refused, refusal.Text
		return nil, errors.Join(notAdmitted(refusal), h.prove(asCalled, &c))
	}
	if err := h.prove(asCalled, &c); err != nil {
		return nil, err
	}
	var g greeting
	proved, err := h.receiveProved(asCaller, &g)
	if err != nil {
		return nil, err
	}
	refusal = &decision{Refused: RefusedCluster, Text: anotherToken}
	if proved {
		refusal = m.judge(&o, &g)
	}
	if refusal == nil && !m.enter(o.Node) {
		refusal = &decision{Refused: RefusedOther, Text: fmt.Sprintf("it has more than %d streams", maxStreams)}
	}
	if refusal != nil {
		return nil, errors.Join(notAdmitted(refusal), h.prove(asDecision, refusal))
	}
	let := decision{Hello: m.hello(o.Node)}
	if g.Purpose == asksToJoin {
		let.Admission, err = m.cfg.Join(ctx, *g.Join)
		if err != nil {
			let = *refuse(kindOf(err), "%v", err)
		}
	}
	if err := h.prove(asDecision, &let); err != nil {
		m.leave(o.Node)
		return nil, err
	}
	return &g, nil
}

// notAdmitted returns what a handshake ends with that let nobody in.
func notAdmitted(v *decision) error { return fmt.Errorf("%w: %s", errNotAdmitted, v.Text) }
