package command

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/latchkey-db/latchkey/internal/backup"
)

const snapshotUsage = `Usage:
  latchkey snapshot status FILE [flags]    what a backup holds, after all of it has been checked
  latchkey snapshot restore FILE [flags]   make the data directory of a node that begins with a backup

Backups are saved by etcdctl snapshot save, from Latchkey or from etcd, and by latchkey recover.

`

func runSnapshot(_ context.Context, args []string, s Streams) (int, error) {
	set := flag.NewFlagSet("snapshot", flag.ContinueOnError)
	asJSON := set.Bool("json", false, "print JSON")
	var f restoreFlags
	f.flags(set)
	args, err := parse(set, snapshotUsage, args, s)
	switch {
	case err != nil:
		return 0, err
	case len(args) == 0:
		return 0, fmt.Errorf("no command; %w", errUsage)
	case args[0] == "restore" && len(args) == 2:
		return 0, f.restore(args[1], s)
	case args[0] != "status" || len(args) != 2:
		return 0, fmt.Errorf("the arguments are not those of a command; %w", errUsage)
	}
	from, err := openBackup(args[1], f.skipHash)
	if err != nil {
		return 0, err
	}
	p := newPrinter(s.Out, *asJSON)
	p.summaryOf(from.Summary())
	return 0, errors.Join(p.flush(), from.Close())
}

// summaryOf prints what a backup holds, by the names that etcdutl has for it.
func (p *printer) summaryOf(b backup.Summary) {
	if p.json != nil {
		p.encode(struct {
			Hash     uint32 `json:"hash"`
			Revision int64  `json:"revision"`
			Keys     int    `json:"totalKey"`
			Size     int64  `json:"totalSize"`
			Version  string `json:"version"`
			Leases   int    `json:"leases"`
			Users    int    `json:"users"`
			Roles    int    `json:"roles"`
			Bump     int64  `json:"bumpRevision,omitempty"`
		}{b.Hash, b.Revision, b.Keys, b.Size, b.Version, b.Leases, b.Users, b.Roles, b.Bump})
		return
	}
	p.columns("HASH", "REVISION", "TOTAL KEYS", "TOTAL SIZE", "VERSION", "LEASES", "USERS", "ROLES")
	p.row(fmt.Sprintf("%x", b.Hash), b.Revision, b.Keys, bytesOf(b.Size), b.Version, b.Leases, b.Users, b.Roles)
	if b.Bump > 0 {
		p.row(fmt.Sprintf("recovered from data directories: a restore bumps the revision by %d at least, and marks what is below as compacted", b.Bump))
	}
}

// bytesOf is a number of bytes as people read it.
func bytesOf(n int64) string {
	if n < 1000 {
		return fmt.Sprint(n, " B")
	}
	size, units := float64(n)/1000, "kMGT"
	for size >= 1000 && len(units) > 1 {
		size, units = size/1000, units[1:]
	}
	return fmt.Sprintf("%.1f %cB", size, units[0])
}
