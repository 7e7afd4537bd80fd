package raft

import (
	"slices"
	"sync"
	"time"

	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
)

const (
	// campaignPause lies between two attempts to stand for election, of which there are
	// campaignAttempts: a replica that has committed entries to apply can't yet.
	campaignPause    = 10 * time.Millisecond
	campaignAttempts = 20
)

// Campaign has this replica stand for election now, unless it leads or knows another
// leader than lost, the replica that led and that the caller takes for gone. It does not
// wait, and nothing may come of it: the others vote for it only if it has all that was
// acknowledged.
//
// It is safe at any time, as it is no more than the end of an election timeout. But it
// takes the leadership from a leader that lives, so the caller had better be right.
func (r *Replica) Campaign(lost uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.known
	if r.closed || known.Term == 0 || known.ReplicaID == r.replicaID || known.ReplicaID != 0 && known.ReplicaID != lost {
		return
	}
	r.wg.Add(1)
	go r.campaign(known, lost)
}

// campaign stands for election until dragonboat reports that something has changed.
func (r *Replica) campaign(known Leader, lost uint64) {
	defer r.wg.Done()
	for range campaignAttempts {
		r.mu.Lock()
		same, changed := !r.closed && r.known == known, r.changed
		r.mu.Unlock()
		if !same {
			return
		}
		// A leader sends this to the replica that it hands over to.
		r.host.inbox.put(raftpb.Message{
			Type: raftpb.TimeoutNow, ShardID: r.shardID, To: r.replicaID, From: lost, Term: known.Term,
		})
		r.pause(changed, campaignPause)
	}
}

// inbox is where dragonboat takes the messages of other hosts. It stands before the
// factory of the transport, which is told where that is.
type inbox struct {
	config.TransportFactory

	// followers are told of what comes.
	followers followers
	// empty holds by shard the replicas that joined and have nothing yet.
	empty sync.Map
	// started reports whether dragonboat has started a replica here.
	started func(shardID, replicaID uint64) bool

	mu sync.Mutex
	// handle and deployment are set while dragonboat takes messages; protected by mu.
	handle     raftio.MessageHandler
	deployment uint64
}

// Create makes the transport. Parts of a snapshot for a replica that has not been started are refused, so that
// their sender begins anew later: when it starts a replica dragonboat removes the folders of
// snapshots that were not received whole, and a part that finds its folder gone stops the process.
func (b *inbox) Create(c config.NodeHostConfig, h raftio.MessageHandler, chunk raftio.ChunkHandler) raftio.ITransport {
	b.mu.Lock()
	b.handle, b.deployment = h, c.GetDeploymentID()
	b.mu.Unlock()
	heard := func(batch raftpb.MessageBatch) {
		b.followers.note(&batch)
		batch.Requests = slices.DeleteFunc(batch.Requests, b.needless)
		h(batch)
	}
	taken := func(part raftpb.Chunk) bool {
		return b.started(part.ShardID, part.ReplicaID) && chunk(part)
	}
	return b.TransportFactory.Create(c, heard, taken)
}

// joining is told of a replica that joined.
func (b *inbox) joining(r *Replica) { b.empty.Store(r.shardID, r) }

// needless reports whether a message is to be dropped: the beginning of a log, for a replica that
// joined and has nothing. What a shard's first replicas began with is not in the log (a backup that was
// restored), so that such a replica must begin with a snapshot. What the leader sends of later entries
// is refused by Raft, which then sends one: the leader has cut its log (Replica.CutLog).
func (b *inbox) needless(m raftpb.Message) bool {
	if m.Type != raftpb.Replicate || m.LogIndex > 0 {
		return false
	}
	r, joined := b.empty.Load(m.ShardID)
	if !joined {
		return false
	}
	replica, _ := r.(*Replica)
	if replica.Applied() > 0 {
		b.empty.Delete(m.ShardID)
		return false
	}
	return true
}

// put hands over a message that no host has sent.
func (b *inbox) put(m raftpb.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.handle != nil {
		b.handle(raftpb.MessageBatch{
			Requests: []raftpb.Message{m}, DeploymentId: b.deployment, BinVer: raftio.TransportBinVersion,
		})
	}
}

// shut is called before dragonboat is closed.
func (b *inbox) shut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.handle = nil
}
