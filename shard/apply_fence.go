package shard

import (
	"fmt"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
)

// guarded applies a command that a user sent, if the guard lets it pass.
func (r *dataRun) guarded(c raft.Command, want bool) (result any, rejected, failed error) {
	g, rest, err := cutGuard(c.Payload)
	if err != nil {
		return nil, nil, err
	}
	if len(rest) == 0 {
		return nil, nil, errBadGuard
	}
	if !fenced(Kind(rest[0])) {
		return nil, nil, fmt.Errorf("guard of a command of kind %d: %w", rest[0], keys.ErrNewer)
	}
	if r.fence.Closed && g.Epoch < r.fence.Epoch {
		return nil, ErrOutdated, nil
	}
	for _, id := range g.Leases {
		if !r.d.leases.Every(id, g.Writable.Contains) {
			return nil, ErrForbidden, nil
		}
	}
	c.Kind, c.Payload = raft.Kind(rest[0]), rest[1:]
	return r.command(c, want)
}

// raise takes over a fence that is not older than the present one.
func (r *dataRun) raise(payload []byte) error {
	f, err := decodeFence(payload)
	if err != nil {
		return err
	}
	if f.Epoch <= r.fence.Epoch {
		return nil
	}
	if err := r.batch.Set(fenceKey(r.d.prefix), appendFence(nil, f), nil); err != nil {
		return fmt.Errorf("write fence: %w", err)
	}
	r.fence = f
	return nil
}
