package node

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/types"
)

func sortedURLs(urls types.URLs) []string {
	s := urls.StringSlice()
	slices.Sort(s)
	return s
}

// memberID is the id of the node with these peer URLs. All nodes of a cluster that
// are started with the same flags agree on their ids before they have exchanged a
// word: an id follows from the peer URLs and the token.
func memberID(peerURLs []string, token string) uint64 {
	return digest("member", strings.Join(peerURLs, ","), token)
}

// peerSecret is what nodes prove to each other that they know. Nothing that is sent or
// answered follows from it, other than the ids that follow from the token itself. salt is what a restored
// cluster has beside its token.
func peerSecret(token, salt string) string {
	mac := hmac.New(sha256.New, []byte(token+salt))
	mac.Write([]byte("latchkey peer secret"))
	return hex.EncodeToString(mac.Sum(nil))
}

// joinSecret is what nodes prove to know that ask to join; empty where it is peerSecret.
func joinSecret(token, salt string) string {
	if salt == "" {
		return ""
	}
	return peerSecret(token, "")
}

// deploymentID keeps the Raft traffic of clusters with different tokens apart.
func deploymentID(token, salt string) uint64 { return digest("deployment", token+salt) }

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
