package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/latchkey-db/latchkey/internal/recovery"
	"github.com/latchkey-db/latchkey/placement"
)

const recoverUsage = `Usage: latchkey recover DIRECTORY... --output FILE

Makes a backup of what is left of a cluster whose majority is lost for good, from the data directories of nodes that
are stopped. Name all that are left, each once. They are not changed. latchkey snapshot restore makes a
new cluster of the backup, whose revisions go on far above those of the old one.

`

func runRecover(ctx context.Context, args []string, s Streams) (code int, err error) {
	set := flag.NewFlagSet("recover", flag.ContinueOnError)
	output := set.String("output", "", "the backup to make; states are copied, or linked, to a directory beside it meanwhile")
	paths, err := parse(set, recoverUsage, args, s)
	switch {
	case err != nil:
		return 0, err
	case len(paths) == 0:
		return 0, fmt.Errorf("no data directory; %w", errUsage)
	case *output == "":
		return 0, fmt.Errorf("no --output; %w", errUsage)
	}
	if _, err := os.Lstat(*output); err == nil {
		return 0, fmt.Errorf("%s is there already: name another file as --output", *output)
	}
	work, err := os.MkdirTemp(filepath.Dir(*output), filepath.Base(*output)+".work-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	directories := make([]recovery.Directory, len(paths))
	for i, path := range paths {
		directories[i] = recovery.Directory{Path: path, Work: filepath.Join(work, fmt.Sprint(i))}
	}
	found, err := recovery.Recover(directories)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	part := filepath.Join(work, "backup")
	if err := writeFile(part, func(w io.Writer) error { return found.Save(ctx, w) }); err != nil {
		return 0, fmt.Errorf("write %s: %w", *output, err)
	}
	if err := os.Rename(part, *output); err != nil {
		return 0, err
	}
	return 0, errors.Join(syncDir(filepath.Dir(*output)), sayRecovered(s.Out, *output, found))
}

// writeFile writes a file that nobody else reads, durably.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes the names in a directory durable.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// sayRecovered says what of each shard was taken, and what may be missing.
func sayRecovered(out io.Writer, output string, found *recovery.Recovered) error {
	p := newPrinter(out, false)
	p.columns("SHARD", "DIRECTORY", "REPLICA", "TERM", "INDEX", "REPLAYED", "REVISION", "REPLICAS SEEN")
	complete := true
	for _, s := range found.Shards {
		name, rev := fmt.Sprint(s.ID), fmt.Sprint(s.Revision)
		if s.ID == placement.SystemShard {
			name, rev = "system", "-"
		}
		p.row(name, s.Path, s.ReplicaID, s.Last.Term, s.Last.Index, s.Replayed, rev, fmt.Sprintf("%d of %d", s.Seen, s.Replicas))
		complete = complete && s.Complete()
	}
	if err := p.flush(); err != nil {
		return err
	}
	say := func(format string, args ...any) {
		_, err := fmt.Fprintf(out, format+"\n", args...)
		p.note(err)
	}
	say("")
	if complete {
		say("A majority of the replicas of each shard was seen: nothing that was acknowledged is missing.")
	} else {
		say("Of some shards no majority of the replicas was seen: writes may be missing that were acknowledged and that only the lost")
		say("nodes had, and users and roles too. What is missing may differ from shard to shard: the newer of two writes may be there without the older.")
	}
	say("Writes whose outcome nobody was told may have taken effect.")
	if n := found.Settled.Finished; n > 0 {
		say("%d changes of transactions over several shards were finished: they had been committed.", n)
	}
	if n := found.Settled.Dropped; n > 0 {
		say("%d transactions over several shards were dropped: they had not been committed.", n)
	}
	for _, t := range found.Settled.Torn {
		say("TORN: of the transaction of revision %d the changes on shard %d are lost, those on others are there.", t.Rev, t.ShardID)
	}
	if n := found.Leases.Lost; n > 0 {
		say("%d leases have keys, and their grants are lost: their time to live is now %d s.", n, recovery.LostTTL)
	}
	say("%s is a backup of revision %d. latchkey snapshot restore makes a new cluster of it, whose revisions begin %d higher.",
		output, found.Revision, int64(recovery.Bump))
	return p.err
}
