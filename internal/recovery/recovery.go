package recovery

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/shard"
	"github.com/latchkey-db/latchkey/system"
)

var (
	// ErrMixed is returned for directories that are not of one cluster, or of one node.
	ErrMixed = errors.New("the data directories don't belong together")
	// ErrNotCovered is returned where a shard has no replica in any of the directories.
	ErrNotCovered = errors.New("the data directories don't cover the cluster")
)

// leaveOut says what to do about a directory of which nothing can be taken.
const leaveOut = "name it no more if the other directories hold what it does"

// Shard says what is taken of a shard.
type Shard struct {
	ID uint64
	// Path is the directory that has the newest log, and ReplicaID the replica there.
	Path      string
	ReplicaID uint64
	// Last is the last entry of its log, and Replayed how many entries its state had not applied.
	Last     raft.Position
	Replayed uint64
	// Revision is that of its keys, 0 of the system shard.
	Revision int64
	// Seen is how many replicas that vote were looked at, and Replicas how many the shard has.
	Seen, Replicas int
}

// Complete reports whether nothing is missing that was acknowledged: a majority was looked at.
func (s *Shard) Complete() bool { return 2*s.Seen > s.Replicas }

// Recovered is what was left of a cluster.
type Recovered struct {
	// Shards are the system shard and the data shards, by id.
	Shards  []Shard
	Settled shard.Settled
	Leases  *shard.OfflineLeases
	// Revision is the newest of any shard.
	Revision int64

	directories []*opened
	system      *system.State
	data        map[uint64]*shard.Data
}

// Recover puts together what is left of a cluster in directories. Close gives them back.
func Recover(directories []Directory) (_ *Recovered, err error) {
	r := &Recovered{data: make(map[uint64]*shard.Data)}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	for _, d := range directories {
		o, err := open(d)
		if err != nil {
			return nil, fmt.Errorf("%w; or %s: %s", err, leaveOut, d.Path)
		}
		r.directories = append(r.directories, o)
		if err := r.belongs(o); err != nil {
			return nil, err
		}
	}
	if err := r.readSystem(); err != nil {
		return nil, err
	}
	offline := shard.NewOffline(func(lease int64) uint64 {
		at := keys.LeasePositions(lease)
		return r.system.Map.Locate(at.Start, at.End)[0].Shard
	})
	for _, id := range slices.Sorted(maps.Keys(r.system.Shards)) {
		if err := r.readShard(offline, id); err != nil {
			return nil, err
		}
	}
	if r.Settled, err = offline.Settle(); err != nil {
		return nil, err
	}
	r.Leases = offline.Leases()
	for _, d := range r.data {
		r.Revision = max(r.Revision, d.Store().Rev())
	}
	return r, nil
}

// belongs refuses a directory that is not of the cluster of the first, or of a node that another one is of.
func (r *Recovered) belongs(o *opened) error {
	id := o.dir.Identity()
	for _, other := range r.directories[:len(r.directories)-1] {
		has := other.dir.Identity()
		switch {
		case has.DeploymentID != id.DeploymentID:
			return fmt.Errorf("%w: %s and %s are of different clusters", ErrMixed, other.Path, o.Path)
		case has.NodeID == id.NodeID:
			return fmt.Errorf("%w: %s and %s are of one node: name the newer one alone", ErrMixed, other.Path, o.Path)
		}
	}
	return nil
}

// readSystem finds the newest state of the system shard.
func (r *Recovered) readSystem() error {
	var newest *replica
	clusters := make(map[uint64]string)
	for _, o := range r.directories {
		replica, state, err := o.systemState()
		if err != nil {
			return fmt.Errorf("%w; or %s", err, leaveOut)
		}
		if state.Cluster.ID != 0 {
			clusters[state.Cluster.ID] = o.Path
		}
		if newest == nil || newest.Last().Before(replica.Last()) {
			newest, r.system = replica, state
		}
	}
	switch {
	case len(clusters) == 0 || r.system.Cluster.ID == 0:
		return fmt.Errorf("%w: no cluster was made before the nodes stopped", ErrNotCovered)
	case len(clusters) > 1:
		return fmt.Errorf("%w: %q are of different clusters", ErrMixed, slices.Sorted(maps.Values(clusters)))
	}
	for _, o := range r.directories {
		if _, removed := r.system.Removed[o.dir.Identity().NodeID]; removed {
			return fmt.Errorf("%w: the node of %s was removed from the cluster, and what it has is old: name it no more", ErrMixed, o.Path)
		}
	}
	return r.took(newest, systemHost, 0)
}

// readShard finds the newest state of a data shard.
func (r *Recovered) readShard(offline *shard.Offline, id uint64) error {
	var newest *replica
	for _, o := range r.directories {
		replica, err := o.replica(dataHost, id)
		if err != nil {
			return fmt.Errorf("%w; or %s", err, leaveOut)
		}
		if replica != nil && (newest == nil || newest.Last().Before(replica.Last())) {
			newest = replica
		}
	}
	if newest == nil {
		return fmt.Errorf("%w: none has a replica of shard %d: name more of them", ErrNotCovered, id)
	}
	d, err := offline.Add(newest.of.state, newest.Offline)
	if err != nil {
		return fmt.Errorf("%s: %w; or %s", newest.of.Path, err, leaveOut)
	}
	r.data[id] = d
	return r.took(newest, dataHost, d.Store().Rev())
}

// took notes what is taken of a shard, whose replicas are on a host of this name.
func (r *Recovered) took(from *replica, host string, rev int64) error {
	s := Shard{
		ID: from.Replica().ShardID(), Path: from.of.Path, ReplicaID: from.Replica().ReplicaID(),
		Last: from.Last(), Replayed: from.Behind(), Revision: rev,
	}
	voters, err := from.Voters()
	if err != nil {
		return fmt.Errorf("%s: %w; or %s", s.Path, err, leaveOut)
	}
	s.Replicas = len(voters)
	for _, o := range r.directories {
		if voters[o.replicas[host][s.ID]] {
			s.Seen++
		}
	}
	r.Shards = append(r.Shards, s)
	return nil
}

// Close gives the directories back.
func (r *Recovered) Close() error {
	var errs []error
	for _, o := range r.directories {
		errs = append(errs, o.close())
	}
	return errors.Join(errs...)
}
