package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	raftvfs "github.com/lni/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/raft"
)

// copies returns copies of the machine's disks.
func (m *machine) copies(t *testing.T) (*vfs.MemFS, *raftvfs.MemFS) {
	t.Helper()
	state, log := vfs.NewMem(), raftvfs.NewMem()
	_, err := vfs.Clone(m.state, state, "/"+m.name, "/"+m.name)
	check(t, err)
	_, err = raftvfs.Clone(m.raft, log, "/"+m.name, "/"+m.name)
	check(t, err)
	return state, log
}

// addUser adds a user, and returns when the system shard's replicas of all nodes that run have
// applied that: an entry that a log has acknowledged and its state has not applied shows nothing
// of an older copy.
func (c *cluster) addUser(name string) {
	c.t.Helper()
	until(c.t, "a change of users", func() bool {
		err := c.leader("a").router.ChangeUsers(c.t.Context(), &pb.InternalRaftRequest{
			Header: &pb.RequestHeader{Username: auth.Root}, AuthUserAdd: &pb.AuthUserAddRequest{Name: name},
		})
		return err == nil || errors.Is(err, auth.ErrUserAlreadyExist)
	})
	applied := func(m *machine) uint64 { return m.node.cluster.Replica().Applied() }
	running := slices.DeleteFunc(slices.Clone(c.machines), func(m *machine) bool { return m.node == nil })
	last := uint64(0)
	for _, m := range running {
		last = max(last, applied(m))
	}
	for _, m := range running {
		until(c.t, m.name+" to apply what the others have", func() bool { return applied(m) >= last })
	}
}

// A node whose log or state is an older copy, or gone, has everything again or refuses to
// start; the others go on (O11).
func TestOldCopies(t *testing.T) {
	for _, splits := range []string{"", "g,n,t"} {
		t.Run("splits="+splits, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, "--initial-splits", splits)
			c.start(c.machines...)
			odd := c.machines[0]
			puts := 0
			put := func() {
				t.Helper()
				puts++
				for _, key := range []string{"a", "h", "o", "u"} {
					c.put(key, fmt.Sprint(puts))
				}
				c.addUser(fmt.Sprint(puts))
			}
			put()
			c.stop(odd)
			state, log := odd.copies(t)
			c.start(odd)
			put()
			c.stop(odd)
			put()
			laterState, laterRaft := odd.copies(t)
			for name, log := range map[string]*raftvfs.MemFS{"the log is an older copy": log, "is gone": raftvfs.NewMem()} {
				odd.raft = log
				err := odd.launch(nil)
				if !errors.Is(err, raft.ErrDisagree) || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%v, want it to say %q", err, name)
				}
				put()
			}
			odd.state, odd.raft = laterState, laterRaft
			c.start(odd)
			put()
			// The log has all that an older state lacks.
			c.stop(odd)
			odd.state = state
			c.start(odd)
			put()
		})
	}
}
