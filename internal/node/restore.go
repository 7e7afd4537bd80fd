package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/latchkey-db/latchkey/internal/config"
	"github.com/latchkey-db/latchkey/internal/datadir"
	"github.com/latchkey-db/latchkey/internal/restore"
	"github.com/latchkey-db/latchkey/system"
)

// Restore makes the data directory of a node of a new cluster that begins with a backup, which
// has been checked and which save writes. It is called for each node with the same backup and the same of; nodes
// for which it was called otherwise are of different clusters.
func Restore(c *config.Config, fsys vfs.FS, save func(io.Writer) error, of datadir.Restore) error {
	self, ok := c.InitialCluster[c.Name]
	if !ok {
		return fmt.Errorf("initial cluster does not name node %q", c.Name)
	}
	of.Splits = c.InitialSplits
	how, err := json.Marshal(of)
	if err != nil {
		return fmt.Errorf("encode what is restored: %w", err)
	}
	return datadir.Make(fsys, c.DataDir, save, func(sum []byte) datadir.Identity {
		id := newIdentity(c, self, fmt.Sprintf("\x00restored %x %s", sum, how))
		id.Restore = &of
		return id
	})
}

// loadBackup makes the state that a restored node begins with, in its first start.
func (n *Node) loadBackup(o *Options) (err error) {
	id := n.dir.Identity()
	if id.Restore == nil {
		return nil
	}
	c := *o.Config
	if len(c.InitialSplits) == 0 {
		c.InitialSplits = id.Restore.Splits
	}
	o.Config = &c
	if !slices.EqualFunc(c.InitialSplits, id.Restore.Splits, bytes.Equal) {
		return fmt.Errorf("%w: restored with %q, started with %q", system.ErrSplits, id.Restore.Splits, c.InitialSplits)
	}
	if id.Whole {
		return nil
	}
	f, err := o.StateFS.Open(n.dir.Backup())
	if err != nil {
		return fmt.Errorf("open backup: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("open backup: %w", err)
	}
	n.log.Info("loading the backup that the node was restored from", slog.Int64("bytes", info.Size()))
	err = restore.Load(n.state, f, info.Size(), restore.Options{
		ReplicaID: replicaIn(id), Splits: id.Restore.Splits,
		Bump: id.Restore.Bump, MarkCompacted: id.Restore.MarkCompacted,
	})
	if err != nil {
		return fmt.Errorf("load backup: %w", err)
	}
	return n.state.Flush()
}
