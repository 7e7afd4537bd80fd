package peer

import (
	"cmp"
	"errors"
	"fmt"
)

// What streams carry has a version. A node speaks all from oldestProtocol to protocol; two
// nodes speak the newest that both do. So a version may be left behind only when nodes that
// speak no later one need not be let in any more.
const (
	protocol       = 2
	oldestProtocol = 2
)

// versions are those of the protocol that a node speaks.
type versions struct {
	// Protocol is the newest, and Oldest the oldest; 0 stands for the newest.
	Protocol int `json:"protocol"`
	Oldest   int `json:"oldest,omitempty"`
}

// spoken are the versions that this node speaks.
var spoken = versions{protocol, oldestProtocol}

// common returns the newest version that both speak, 0 if there is none.
func (v versions) common(other versions) int {
	newest := min(v.Protocol, other.Protocol)
	if newest < v.oldest() || newest < other.oldest() {
		return 0
	}
	return newest
}

func (v versions) oldest() int { return cmp.Or(v.Oldest, v.Protocol) }

func (v versions) String() string {
	if v.oldest() == v.Protocol {
		return fmt.Sprintf("version %d", v.Protocol)
	}
	return fmt.Sprintf("versions %d to %d", v.oldest(), v.Protocol)
}

// purpose says what a stream carries.
type purpose string

const (
	carriesCalls    purpose = "calls"
	carriesMessages purpose = "messages"
	carriesSnapshot purpose = "snapshot"
	// asksToJoin carries nothing: the handshake says all (join.go).
	asksToJoin purpose = "join"
)

// Hello is what a node says of itself to another that has proved to be of its cluster.
type Hello struct {
	// Cluster is the cluster's id, 0 while the node does not know it.
	Cluster uint64 `json:"cluster,omitempty"`
	// Node is the node's id and Instance that of its data directory.
	Node     uint64 `json:"node"`
	Instance string `json:"instance"`
	// Membership is the zero value for a program that does not say it.
	Membership
}

// Membership is what a node knows of the members, for another that may know less.
type Membership struct {
	// Version counts the changes of the members that it knows.
	Version uint64 `json:"members,omitempty"`
	// URLs are where it is reached.
	URLs []string `json:"urls,omitempty"`
	// Other is the instance of the data directory of the node that it talks to, empty if it does not know that one.
	Other string `json:"other,omitempty"`
}

// greeting says what a connection is for.
type greeting struct {
	Hello
	// To is the node that is to be reached.
	To      uint64  `json:"-"`
	Purpose purpose `json:"purpose"`
	// Host is the Raft host whose frames the stream carries.
	Host string `json:"host,omitempty"`
	// Join is what a node says that is no member yet.
	Join *Joining `json:"join,omitempty"`
}

// decision answers a greeting.
type decision struct {
	Hello
	// Refused is empty for a node that is let in.
	Refused RefusalKind `json:"refused,omitempty"`
	Text    string      `json:"text,omitempty"`
	// Admission is what a node is told that asks to join.
	Admission []byte `json:"admission,omitempty"`
}

// anotherToken says that a node does not know the cluster's secret.
const anotherToken = "it was started with another --initial-cluster-token, or restored otherwise"

// wrongNode says that a node was reached instead of another.
func wrongNode(want, found uint64) string {
	return fmt.Sprintf("it looks for node %x here, but this is node %x; check the peer URLs", want, found)
}

// hello is what this node says of itself to another now.
func (m *Mesh) hello(other uint64) Hello {
	h := Hello{Cluster: m.cfg.ClusterID(), Node: m.cfg.Node, Instance: m.cfg.Instance}
	if m.cfg.Membership != nil {
		h.Membership = m.cfg.Membership(other)
	}
	return h
}

func refuse(kind RefusalKind, format string, args ...any) *decision {
	return &decision{Refused: kind, Text: fmt.Sprintf(format, args...)}
}

// judgeOpening returns why a caller that has proved nothing may not go on, nil if it may.
func (m *Mesh) judgeOpening(o *opening) *decision {
	if spoken.common(o.versions) == 0 {
		return refuse(RefusedOther, "it speaks %v of the protocol between nodes, this node speaks %v", o.versions, spoken)
	}
	return nil
}

// judge returns why the sender of a greeting, who has proved to know the secret, is not let
// in, nil if it is.
func (m *Mesh) judge(o *opening, g *greeting) *decision {
	cluster := m.cfg.ClusterID()
	switch {
	case g.Purpose == asksToJoin:
		return m.judgeJoining(o, g)
	case g.Cluster != 0 && cluster != 0 && g.Cluster != cluster:
		return refuse(RefusedCluster, "it belongs to cluster %x, this node to cluster %x", g.Cluster, cluster)
	case o.To != m.cfg.Node:
		return refuse(RefusedOther, "%s", wrongNode(o.To, m.cfg.Node))
	case g.Node != o.Node:
		return refuse(RefusedOther, "it calls itself node %x and node %x", o.Node, g.Node)
	case g.Node == m.cfg.Node:
		return refuse(RefusedOther, "it has this node's id")
	}
	if err := m.cfg.Admit(g.Hello); err != nil {
		return refuse(kindOf(err), "%v", err)
	}
	return m.fits(g)
}

// kindOf returns the kind of a refusal.
func kindOf(err error) RefusalKind {
	switch {
	case errors.Is(err, ErrRemoved):
		return RefusedRemoved
	case errors.Is(err, ErrBarred):
		return RefusedBarred
	}
	return RefusedOther
}

// fits returns why nothing here serves a stream of the greeting's purpose, nil if something
// does.
func (m *Mesh) fits(g *greeting) *decision {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch g.Purpose {
	case carriesCalls:
		return nil
	case carriesMessages, carriesSnapshot:
		if m.wires[g.Host] == nil {
			return refuse(RefusedOther, "host %q is not there yet", g.Host)
		}
		return nil
	case asksToJoin: // judged before
	}
	return refuse(RefusedOther, "purpose %q is not known", g.Purpose)
}

// meet judges the decision of the node that was to be reached, which has proved itself.
func (m *Mesh) meet(node uint64, v *decision) error {
	if v.Refused != "" {
		return &RefusedError{Node: node, Kind: v.Refused, Text: v.Text, Proved: true}
	}
	if v.Node != node {
		return fmt.Errorf("%w: node %x calls itself node %x", errStream, node, v.Node)
	}
	if err := m.cfg.Admit(v.Hello); err != nil {
		return fmt.Errorf("node %x is not admitted: %w", node, err)
	}
	return nil
}
