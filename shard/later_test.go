package shard

import (
	"encoding/binary"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
)

// What a later version wrote is never skipped: the replicas of this one would become others.
func TestLaterCommandsStopTheReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd, _ := c.leader(0)
		unknown := []byte{0x98, 0x06, 7} // field 99 of a message
		in := func(kind Kind, payload []byte) []byte {
			_, whole := guarded(&Guard{}, kind, payload)
			return whole
		}
		for name, command := range map[string]raft.Command{
			"kind":         {Kind: 200},
			"put":          {Kind: raft.Kind(KindPut), Payload: append([]byte{0x0a, 1, 'k'}, unknown...)},
			"guarded put":  {Kind: raft.Kind(kindGuarded), Payload: in(KindPut, unknown)},
			"guarded kind": {Kind: raft.Kind(kindGuarded), Payload: in(200, nil)},
			"attached":     {Kind: raft.Kind(kindAttached), Payload: append(appendVerdicts(nil, nil), 200)},
			"grant":        {Kind: raft.Kind(KindLeaseGrant), Payload: unknown},
			"revoke":       {Kind: raft.Kind(KindLeaseRevoke), Payload: unknown},
			"register":     {Kind: raft.Kind(kindLeaseRegister), Payload: []byte{2, 3, 4}},
			"fence":        {Kind: raft.Kind(kindFence), Payload: []byte{fenceForm + 1, 1, 0}},
			"shape":        {Kind: raft.Kind(kindFirstShape), Payload: []byte{shapeForm + 1, 1, 0}},
			"order":        {Kind: raft.Kind(kindOrder), Payload: []byte{1}},
			"sweep":        {Kind: raft.Kind(kindSweep), Payload: append(binary.AppendVarint(nil, 7), 1)},
		} {
			nd.data.replica.Between(func() {
				_, rejected, failed := nd.data.Apply(nd.db.NewBatch()).Command(command, true)
				if !errors.Is(failed, keys.ErrNewer) {
					t.Errorf("%s: rejected %v, failed %v", name, rejected, failed)
				}
			})
		}
	})
}
