package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/config"
	"github.com/latchkey-db/latchkey/internal/datadir"
	"github.com/latchkey-db/latchkey/internal/remote"
	"github.com/latchkey-db/latchkey/shard"
)

const (
	// fingerprintTimeout bounds one comparison of a shard: all its versions are read.
	fingerprintTimeout = time.Minute
	// fingerprintAttempts is how often a shard is hashed anew because another node has
	// compacted further.
	fingerprintAttempts = 3
	// verifyAgain is how often a start asks nodes again that have not answered.
	verifyAgain = 100 * time.Millisecond
	// wholeCluster stands for a member in an alarm that nobody can be named in.
	wholeCluster uint64 = 0
)

// ErrCorrupt is returned for a node whose data differs from that of the others.
var ErrCorrupt = errors.New("this node's data differs from that of the other nodes")

// verifier compares the data of the nodes. What most of all nodes hold is right: an alarm
// names those that hold something else, or the whole cluster if there is no such majority.
type verifier struct {
	self uint64
	// nodes returns the members that have replicas.
	nodes  func() []uint64
	shards map[uint64]*shard.Data
	// ask hashes a shard as another node holds it.
	ask func(ctx context.Context, node, shardID uint64, rev, floor int64) (shard.Fingerprint, error)
	// alarms are those that are on, raise turns one of a corrupt member on.
	alarms func() []*pb.AlarmMember
	raise  func(ctx context.Context, member uint64) error
	// leads reports whether this node is the one that compares.
	leads func() bool
	log   *slog.Logger

	stop context.CancelFunc
	wg   sync.WaitGroup
}

// newVerifier returns the verifier of a node.
func newVerifier(p *peers) *verifier {
	n := p.node
	return &verifier{
		self: n.membership.self, nodes: n.membership.started, shards: n.shards, ask: (&remote.Leaders{Mesh: p.mesh}).Fingerprint, alarms: n.cluster.Alarms,
		raise: func(ctx context.Context, member uint64) error {
			_, err := n.cluster.RaiseAlarm(ctx, member, pb.AlarmType_CORRUPT)
			return err
		},
		leads: func() bool { return n.cluster.Leader() == n.membership.self },
		log:   n.log, stop: func() {},
	}
}

// start compares every now and then.
func (v *verifier) start(c *config.Config) {
	var ctx context.Context
	ctx, v.stop = context.WithCancel(context.Background())
	if c.CorruptCheckTime > 0 {
		v.whileLeading(ctx, c.CorruptCheckTime, func() { v.check(ctx) })
	}
	if c.CompactHashCheck && c.CompactHashCheckTime > 0 {
		checked := int64(0)
		v.whileLeading(ctx, c.CompactHashCheckTime, func() {
			if compacted := v.compacted(); compacted > checked && v.check(ctx) {
				checked = compacted
			}
		})
	}
}

// whileLeading calls fn over and over, while this node leads.
func (v *verifier) whileLeading(ctx context.Context, interval time.Duration, fn func()) {
	v.wg.Go(func() {
		every(ctx, interval, func() {
			if v.leads() {
				fn()
			}
		})
	})
}

func (v *verifier) close() {
	v.stop()
	v.wg.Wait()
}

// compacted returns the newest compaction of the shards.
func (v *verifier) compacted() int64 {
	rev := int64(0)
	for _, d := range v.shards {
		rev = max(rev, d.Store().Compacted())
	}
	return rev
}

// check compares all shards, and reports whether all nodes took part.
func (v *verifier) check(ctx context.Context) (all bool) {
	all = true
	for _, id := range slices.Sorted(maps.Keys(v.shards)) {
		sums, at, err := v.compare(ctx, id)
		if err != nil {
			v.log.Warn("replicas could not be compared", slog.Uint64("shard", id), slog.Any("error", err))
			all = false
			continue
		}
		all = all && len(sums) == len(v.nodes())
		v.accuse(ctx, id, at, sums)
	}
	return all
}

// compare hashes a shard at one revision as each node holds it. Nodes that do not answer
// are not in sums.
func (v *verifier) compare(ctx context.Context, shardID uint64) (sums map[uint64]uint32, at shard.Fingerprint, err error) {
	ctx, cancel := context.WithTimeout(ctx, fingerprintTimeout)
	defer cancel()
	floor := int64(-1)
	for range fingerprintAttempts {
		at, err = v.shards[shardID].Fingerprint(ctx, 0, floor)
		if err != nil {
			return nil, at, err
		}
		sums = map[uint64]uint32{v.self: at.Sum}
		floor = at.Floor
		for node, f := range v.others(ctx, shardID, at) {
			if f.Floor == at.Floor {
				sums[node] = f.Sum
			}
			floor = max(floor, f.Floor)
		}
		if floor == at.Floor {
			break
		}
	}
	return sums, at, nil
}

// others has the other nodes hash a shard, side by side, and returns what they answered.
func (v *verifier) others(ctx context.Context, shardID uint64, at shard.Fingerprint) map[uint64]shard.Fingerprint {
	answers := make(map[uint64]shard.Fingerprint)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, node := range v.nodes() {
		if node == v.self {
			continue
		}
		wg.Go(func() {
			f, err := v.ask(ctx, node, shardID, at.Rev, at.Floor)
			if err != nil {
				v.log.Debug("a replica could not be compared", slog.Uint64("shard", shardID),
					slog.String("node", fmt.Sprintf("%x", node)), slog.Any("error", err))
				return
			}
			mu.Lock()
			defer mu.Unlock()
			answers[node] = f
		})
	}
	wg.Wait()
	return answers
}

// judge returns the nodes of a cluster of so many whose hash is not that of a majority, or
// wholeCluster if hashes differ and no majority has the same.
func judge(nodes int, sums map[uint64]uint32) []uint64 {
	count := make(map[uint32]int)
	for _, sum := range sums {
		count[sum]++
	}
	if len(count) < 2 {
		return nil
	}
	var odd []uint64
	for node, sum := range sums {
		if count[sum] <= nodes/2 {
			odd = append(odd, node)
		}
	}
	if len(odd) == len(sums) {
		return []uint64{wholeCluster}
	}
	slices.Sort(odd)
	return odd
}

// accuse raises an alarm for each node whose hash is not that of a majority.
func (v *verifier) accuse(ctx context.Context, shardID uint64, at shard.Fingerprint, sums map[uint64]uint32) {
	for _, member := range judge(len(v.nodes()), sums) {
		if slices.ContainsFunc(v.alarms(), func(a *pb.AlarmMember) bool {
			return a.Alarm == pb.AlarmType_CORRUPT && a.MemberID == member
		}) {
			continue
		}
		hashes := make(map[string]string, len(sums))
		for node, sum := range sums {
			hashes[fmt.Sprintf("%x", node)] = fmt.Sprintf("%08x", sum)
		}
		v.log.Error("nodes hold different data: writes stop; stop the corrupt node, then disarm the alarm",
			slog.String("corrupt", corruptName(member)), slog.Uint64("shard", shardID), slog.Int64("revision", at.Rev),
			slog.Int64("compacted", at.Floor), slog.Any("hashes", hashes))
		if err := v.raise(ctx, member); err != nil && ctx.Err() == nil {
			v.log.Error("the CORRUPT alarm can't be raised; it is tried again", slog.Any("error", err))
		}
	}
}

func corruptName(member uint64) string {
	if member == wholeCluster {
		return "no majority agrees"
	}
	return fmt.Sprintf("%x", member)
}

// atStart refuses this node if its data differs from that of a majority, or if there is no
// majority that agrees. Nodes that have not answered by the end of ctx are passed over.
func (v *verifier) atStart(ctx context.Context) error {
	for _, id := range slices.Sorted(maps.Keys(v.shards)) {
		sums, at, err := v.compareAll(ctx, id)
		if err != nil {
			return fmt.Errorf("compare shard %d with other nodes: %w", id, err)
		}
		odd := judge(len(v.nodes()), sums)
		if slices.Contains(odd, v.self) || slices.Contains(odd, wholeCluster) {
			return fmt.Errorf("%w: shard %d at revision %d; don't start it with this data directory again, "+datadir.Lost,
				ErrCorrupt, id, at.Rev)
		}
		v.accuse(context.WithoutCancel(ctx), id, at, sums)
	}
	return nil
}

// compareAll compares a shard until all nodes have answered or ctx ends, and takes what
// there is then.
func (v *verifier) compareAll(ctx context.Context, id uint64) (sums map[uint64]uint32, at shard.Fingerprint, err error) {
	for {
		more, moreAt, moreErr := v.compare(ctx, id)
		if len(more) > len(sums) || sums == nil {
			sums, at, err = more, moreAt, moreErr
		}
		if len(sums) == len(v.nodes()) {
			return sums, at, nil
		}
		t := time.NewTimer(verifyAgain)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			v.log.Warn("data was not compared with all nodes", slog.Uint64("shard", id), slog.Int("nodes", max(0, len(sums)-1)))
			return sums, at, err
		}
	}
}

// suspect reports whether an alarm says that what this node holds may be wrong: it differs from what
// others hold. A node without others goes on reading, as etcd does.
func (p *peers) suspect() bool {
	if len(p.node.membership.nodes()) == 1 {
		return false
	}
	for _, a := range p.node.cluster.State().Alarms {
		if a.Type == pb.AlarmType_CORRUPT && (a.Member == p.node.membership.self || a.Member == wholeCluster) {
			return true
		}
	}
	return false
}
