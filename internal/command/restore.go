package command

import (
	"errors"
	"flag"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/latchkey-db/latchkey/internal/config"
	"github.com/latchkey-db/latchkey/internal/datadir"
	"github.com/latchkey-db/latchkey/internal/node"
)

// nodeFlags are those of the node that decide who it is, with what restore says of them. The
// node's own parser reads them.
var nodeFlags = map[string]string{
	"data-dir":                    "restore: the data directory to make",
	"name":                        "restore: the node's name",
	"initial-cluster":             "restore: the nodes of the new cluster, as at their first start",
	"initial-cluster-token":       "restore: the token of the new cluster",
	"initial-advertise-peer-urls": "restore: the node's peer URLs",
	"initial-splits":              "restore: the keys at which the new cluster's keys are divided among shards",
}

const (
	bumpFlag      = "bump-revision"
	compactedFlag = "mark-compacted"
)

// maxBump leaves revisions for what comes.
const maxBump = 1 << 62

// restoreFlags are those of snapshot restore.
type restoreFlags struct {
	datadir.Restore

	// skipHash has a snapshot of etcd not be compared with its SHA-256; it is for status, too.
	skipHash bool
	set      *flag.FlagSet
}

func (f *restoreFlags) flags(set *flag.FlagSet) {
	f.set = set
	for name, usage := range nodeFlags {
		set.String(name, "", usage)
	}
	set.BoolVar(&f.skipHash, "skip-hash-check", false, "take a database copied from an etcd, which has no SHA-256 behind it")
	set.Int64Var(&f.Bump, bumpFlag, 0, "restore: by how much revisions go on above those of the backup")
	set.BoolVar(&f.MarkCompacted, compactedFlag, false, "restore: have watches below the new revision be told that it is compacted")
}

// restore makes a node's data directory from the backup in a file.
func (f *restoreFlags) restore(path string, s Streams) (err error) {
	if f.Bump < 0 || f.Bump > maxBump {
		return fmt.Errorf("--%s is below 0 or above %d; %w", bumpFlag, int64(maxBump), errUsage)
	}
	var args []string
	f.set.Visit(func(set *flag.Flag) {
		if _, ok := nodeFlags[set.Name]; ok {
			args = append(args, "--"+set.Name+"="+set.Value.String())
		}
	})
	c, err := config.Parse(args, nil)
	if err != nil {
		return err
	}
	from, err := openBackup(path, f.skipHash)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	if err := f.bump(from.Summary().Bump); err != nil {
		return err
	}
	if err := node.Restore(c, vfs.Default, from.Save, f.Restore); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.Out, "%s holds node %s of a new cluster with the backup of revision %d\n", c.DataDir, c.Name, from.Summary().Revision)
	return err
}

// bump has revisions go on as far above those of a backup as it says that they must at least: it lacks writes, whose
// revisions, and fencing tokens among them, must never be seen again for others.
func (f *restoreFlags) bump(least int64) error {
	if least == 0 {
		return nil
	}
	given := make(map[string]bool)
	f.set.Visit(func(set *flag.Flag) { given[set.Name] = true })
	switch {
	case !given[bumpFlag]:
		f.Bump = least
	case f.Bump < least:
		return fmt.Errorf("the backup was recovered and may lack writes: --%s must be %d at least, or left out; %w", bumpFlag, least, errUsage)
	}
	if given[compactedFlag] && !f.MarkCompacted {
		return fmt.Errorf("the backup was recovered and may lack writes: --%s can't be false; %w", compactedFlag, errUsage)
	}
	f.MarkCompacted = true
	return nil
}
