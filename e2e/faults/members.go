package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// endPatience is how long a node that was removed may take to end.
const endPatience = 20 * time.Second

// errStays is returned for a node that runs on although its member was removed.
var errStays = errors.New("the removed node does not end")

// Join adds a node that has no directory, starts it, and returns when it is healthy.
func (c *Cluster) Join(ctx context.Context, through *clientv3.Client, n *Node, learner bool) error {
	if err := c.Add(ctx, through, n, learner); err != nil {
		return err
	}
	if err := n.Launch(); err != nil {
		return err
	}
	return n.AwaitHealthy(ctx)
}

// Add makes a node a member, or a learner, through a client of others, unless it is one. A cluster may call itself
// unhealthy for some time after nodes have started, so the change is tried until ctx ends.
func (c *Cluster) Add(ctx context.Context, through *clientv3.Client, n *Node, learner bool) error {
	add := through.MemberAdd
	if learner {
		add = through.MemberAddAsLearner
	}
	var members []string
	err := change(ctx, func(try context.Context) error {
		resp, err := add(try, []string{n.peer})
		var all []*pb.Member
		if err == nil {
			all = resp.Members
		} else {
			// An earlier try may have added it; etcd may have no majority before it runs.
			list, unknown := through.MemberList(try, clientv3.WithSerializable())
			if unknown != nil || !slices.ContainsFunc(list.Members, n.is) {
				return errors.Join(err, unknown)
			}
			all = list.Members
		}
		members = members[:0]
		for _, m := range all {
			name := cmp.Or(m.Name, fmt.Sprintf("%x", m.ID))
			if n.is(m) {
				name = n.Name
			}
			members = append(members, name+"="+m.PeerURLs[0])
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("add %s: %w", n.Name, err)
	}
	n.cluster = []string{"--initial-cluster", strings.Join(members, ","), "--initial-cluster-state", "existing"}
	return nil
}

// is reports whether a member is this node.
func (n *Node) is(m *pb.Member) bool { return m.PeerURLs[0] == n.peer }

// Leave removes a node's member, through a client of others, waits for the node to end, if it runs, and removes its directory.
func (c *Cluster) Leave(ctx context.Context, through *clientv3.Client, n *Node) error {
	err := change(ctx, func(try context.Context) error {
		list, err := through.MemberList(try)
		if err != nil {
			return err
		}
		for _, m := range list.Members {
			if n.is(m) {
				_, err = through.MemberRemove(try, m.ID)
			}
		}
		if errors.Is(err, rpctypes.ErrMemberNotFound) {
			err = nil // an earlier try has removed it
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("remove %s: %w", n.Name, err)
	}
	if ended, _ := n.Ended(endPatience); !ended {
		return fmt.Errorf("%w: %s", errStays, n.Name)
	}
	return n.Lose()
}

// Lose kills a node, if it runs, and removes its directory.
func (n *Node) Lose() error {
	if err := n.Kill(); err != nil {
		return err
	}
	return os.RemoveAll(n.data)
}

// Stored returns the bytes of the files in the node's directory.
func (n *Node) Stored() (size int64, err error) {
	err = filepath.WalkDir(n.data, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // not there yet, or any more
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		switch {
		case err == nil:
			size += info.Size()
		case errors.Is(err, fs.ErrNotExist):
			err = nil
		}
		return err
	})
	return size, err
}

// Restore makes the directory of a node that has never been started from a backup, with further flags.
func (n *Node) Restore(ctx context.Context, backup string, flags ...string) error {
	args := append([]string{"snapshot", "restore", backup, "--name", n.Name, "--data-dir", n.data, "--initial-advertise-peer-urls", n.peer}, slices.Concat(n.cluster, flags)...)
	if out, err := exec.CommandContext(ctx, n.binary, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("restore %s: %w: %s", n.Name, err, out)
	}
	return nil
}

// change makes a change of the members until it succeeds or ctx ends, and returns the last error then.
func change(ctx context.Context, fn func(try context.Context) error) error {
	for {
		try, cancel := context.WithTimeout(ctx, attempt)
		err := fn(try)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		sleep(ctx, 100*time.Millisecond)
	}
}

// others returns a client of all nodes but one.
func (c *Cluster) others(n *Node) (*clientv3.Client, error) {
	return Dial(slices.DeleteFunc(c.Endpoints(), func(e string) bool { return e == n.Client })...)
}

// withOthers calls fn with a client of all nodes but one, within the time that a cluster has to heal.
func (c *Cluster) withOthers(n *Node, fn func(ctx context.Context, through *clientv3.Client) error) error {
	through, err := c.others(n)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), healTimeout)
	defer cancel()
	return errors.Join(fn(ctx, through), through.Close())
}

// replace has a node removed, one that runs or has been killed, and lost its directory, a moment before. Its end has another
// node take its place, under the same name and address.
func (c *Cluster) replace(n *Node, lost bool) (end func() error, err error) {
	if lost {
		if err := n.Lose(); err != nil {
			return nil, err
		}
	}
	leave := func(ctx context.Context, through *clientv3.Client) error { return c.Leave(ctx, through, n) }
	if err := c.withOthers(n, leave); err != nil {
		return nil, err
	}
	return func() error {
		return c.withOthers(n, func(ctx context.Context, through *clientv3.Client) error { return c.Join(ctx, through, n, false) })
	}, nil
}

// errNoLater is returned where a cluster has no nodes that may join.
var errNoLater = errors.New("the cluster was laid out without nodes that join later")

// grow has a node join that is no member, and leave at the end.
func (c *Cluster) grow(rnd *rand.Rand) (end func() error, err error) {
	if len(c.Later) == 0 {
		return nil, errNoLater
	}
	n := c.Later[rnd.IntN(len(c.Later))]
	join := func(ctx context.Context, through *clientv3.Client) error { return c.Join(ctx, through, n, false) }
	if err := c.withOthers(n, join); err != nil {
		return nil, err
	}
	return func() error {
		return c.withOthers(n, func(ctx context.Context, through *clientv3.Client) error { return c.Leave(ctx, through, n) })
	}, nil
}
