package peer

import (
	"context"
	"errors"
	"fmt"
)

// Joining is what a node says that is to become a member. It has no id yet.
type Joining struct {
	// PeerURLs are where it will be reached: they name the member that it is to be.
	PeerURLs []string `json:"peer_urls"`
	// Instance is that of its data directory, and Version the newest cluster version that it speaks.
	Instance string `json:"instance"`
	Version  uint32 `json:"version"`
	// Members are the peer URLs of each member that it was told of, itself among them.
	Members [][]string `json:"members"`

	// admission is what it was told.
	admission []byte
}

// Join asks the node at one of some peer URLs to let this one, which has no id and no mesh yet, become a member, and
// returns what it is told. An error that wraps RefusedError is the other node's; one that could not be asked is
// another.
func Join(ctx context.Context, cfg Config, urls []string, j Joining) (admission []byte, err error) {
	cfg.Node, cfg.Instance = 0, j.Instance
	cfg.ClusterID = func() uint64 { return 0 }
	cfg.URLs = func(uint64) []string { return urls }
	m := New(cfg)
	defer m.Close()
	ch, err := m.open(ctx, greeting{Purpose: asksToJoin, Join: &j})
	if err != nil {
		return nil, fmt.Errorf("ask to join: %w", err)
	}
	ch.close()
	return j.admission, nil
}

// judgeJoining returns why a node that asks to join is not heard, nil if it is.
func (m *Mesh) judgeJoining(o *opening, g *greeting) *decision {
	switch {
	case m.cfg.Join == nil || m.cfg.ClusterID() == 0:
		return refuse(RefusedOther, "%v", errNoCluster)
	case g.Join == nil || o.Node != 0 || o.To != 0 || g.Node != 0:
		return refuse(RefusedOther, "it asks to join, and is a member")
	}
	return nil
}

var errNoCluster = errors.New("this node has no cluster yet that another could join")
