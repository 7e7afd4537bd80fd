package peer

import (
	"encoding/json"
	"errors"
	"fmt"
)

// protocol is the version of what streams carry.
const protocol = 1

// purpose says what a stream carries.
type purpose string

const (
	carriesCalls    purpose = "calls"
	carriesMessages purpose = "messages"
	carriesSnapshot purpose = "snapshot"
)

// Hello is what a node says of itself when it meets another.
type Hello struct {
	// Deployment follows from the cluster's token, Cluster is the cluster's id, 0 while
	// the node does not know it.
	Deployment uint64 `json:"deployment"`
	Cluster    uint64 `json:"cluster,omitempty"`
	// Node is the node's id and Instance that of its data directory.
	Node     uint64 `json:"node"`
	Instance string `json:"instance"`
}

// greeting opens a stream.
type greeting struct {
	Protocol int `json:"protocol"`
	Hello
	// To is the node that is to be reached.
	To      uint64  `json:"to"`
	Purpose purpose `json:"purpose"`
	// Host is the Raft host whose frames the stream carries.
	Host string `json:"host,omitempty"`
}

// verdict answers a greeting.
type verdict struct {
	Hello
	// Refused is empty for a node that is let in.
	Refused RefusalKind `json:"refused,omitempty"`
	Text    string      `json:"text,omitempty"`
}

// hello is what this node says of itself now.
func (m *Mesh) hello() Hello {
	return Hello{Deployment: m.cfg.Deployment, Cluster: m.cfg.ClusterID(), Node: m.cfg.Node, Instance: m.cfg.Instance}
}

// judge returns why the sender of a greeting is not let in, nil if it is.
func (m *Mesh) judge(g *greeting) *verdict {
	refuse := func(kind RefusalKind, format string, args ...any) *verdict {
		return &verdict{Refused: kind, Text: fmt.Sprintf(format, args...)}
	}
	cluster := m.cfg.ClusterID()
	switch {
	case g.Protocol != protocol:
		return refuse(RefusedOther, "it speaks version %d of the protocol between nodes, this node speaks %d", g.Protocol, protocol)
	case g.Deployment != m.cfg.Deployment:
		return refuse(RefusedCluster, "it was started with another --initial-cluster-token")
	case g.Cluster != 0 && cluster != 0 && g.Cluster != cluster:
		return refuse(RefusedCluster, "it belongs to cluster %x, this node to cluster %x", g.Cluster, cluster)
	case g.To != m.cfg.Node:
		return refuse(RefusedOther, "it looks for node %x here, but this is node %x; check the peer URLs", g.To, m.cfg.Node)
	case g.Node == m.cfg.Node:
		return refuse(RefusedOther, "it has this node's id")
	}
	if err := m.cfg.Admit(g.Hello); err != nil {
		kind := RefusedOther
		if errors.Is(err, ErrBarred) {
			kind = RefusedBarred
		}
		return refuse(kind, "%v", err)
	}
	return nil
}

// meet judges the node that answered a greeting.
func (m *Mesh) meet(node uint64, answer []byte) error {
	var v verdict
	if err := json.Unmarshal(answer, &v); err != nil {
		return fmt.Errorf("%w: %w", errStream, err)
	}
	if v.Refused != "" {
		return &RefusedError{Node: node, Kind: v.Refused, Text: v.Text}
	}
	if err := m.cfg.Admit(v.Hello); err != nil {
		return fmt.Errorf("node %x is not admitted: %w", node, err)
	}
	return nil
}
