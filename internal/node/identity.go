package node

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/types"

	"github.com/latchkey-db/latchkey/internal/config"
)

// member is one node of the initial cluster.
type member struct {
	name     string
	id       uint64
	peerURLs []string
}

// initialMembers returns the nodes that the flags name, by id. All nodes of a
// cluster that are started with the same flags agree on it before they have
// exchanged a word: an id follows from the peer URLs and the token.
func initialMembers(c *config.Config) []member {
	members := make([]member, 0, len(c.InitialCluster))
	for name, urls := range c.InitialCluster {
		peers := sortedURLs(urls)
		members = append(members, member{name: name, id: memberID(peers, c.ClusterToken), peerURLs: peers})
	}
	slices.SortFunc(members, func(a, b member) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	return members
}

func sortedURLs(urls types.URLs) []string {
	s := urls.StringSlice()
	slices.Sort(s)
	return s
}

func memberID(peerURLs []string, token string) uint64 {
	return digest("member", strings.Join(peerURLs, ","), token)
}

// deploymentID keeps the Raft traffic of clusters with different tokens apart.
func deploymentID(token string) uint64 { return digest("deployment", token) }

// digest returns a number that is never 0.
func digest(parts ...string) uint64 {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return max(binary.BigEndian.Uint64(sum[:]), 1)
}

// nodeHostID returns the name of a node's host in the registry of members: a UUID
// that follows from the node's id, so that addresses may change.
func nodeHostID(host string, nodeID uint64) string {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("nodehost "+host+" "), nodeID))
	sum[6] = sum[6]&0x0f | 0x80 // version 8: made by a rule of our own
	sum[8] = sum[8]&0x3f | 0x80
	h := hex.EncodeToString(sum[:16])
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}
