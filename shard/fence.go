package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
)

// The users and their rights are the system shard's, and requests are checked
// against them before they come here. The fence is what keeps a request out whose
// check is outdated by the time it applies: every data shard knows up to which
// epoch of the users' state requests must have been checked, and turns away what
// was checked earlier.
//
// A node uses a new state of the users only when all data shards are fenced at its
// epoch. So nobody can learn of a change, be it by a right gained or a refusal, and
// then see a request pass that the change forbids.

var (
	// ErrOutdated is returned for a command that was checked against an older state
	// of the users than the shard is fenced at. Nothing was applied; the sender may
	// check again and send a new command.
	ErrOutdated = errors.New("shard: checked against users that have changed since")
	// ErrForbidden is returned for a command on a lease with a key that the guard
	// does not let it write. Nothing was applied.
	ErrForbidden = errors.New("shard: lease has keys that must not be written")
)

// Fence says which commands a data shard takes from users.
type Fence struct {
	// Epoch is that of the users' state. It only grows.
	Epoch uint64
	// Closed is set while only commands with a guard of this epoch or a later one
	// are taken; otherwise all are.
	Closed bool
}

// Guard is what the sender of a command has checked, and what is left to check
// where it applies.
type Guard struct {
	// Epoch is that of the users' state that the request was checked against.
	Epoch uint64
	// Leases are those that the command uses, as far as it matters whose keys hang
	// on them: each must lie in Writable when the command applies.
	Leases   []int64
	Writable keys.Set
}

// fenced lists the kinds of commands that the fence is for. What carries another
// kind was not sent by a user, or needs no right to any key.
func fenced(k Kind) bool {
	return k == KindPut || k == KindDeleteRange || k == KindTxn || k == KindLeaseRevoke || k == KindLeaseRevokeHere || k == kindAttached
}

const (
	// fenceTag is the key of a data shard's fence below its replica's prefix.
	fenceTag byte = 'f'
	// fenceForm opens a fence. What a later form has stops this version.
	fenceForm byte = 1
)

func fenceKey(prefix []byte) []byte {
	return append(append([]byte(nil), prefix...), fenceTag)
}

var errBadFence = errors.New("malformed fence")

// appendFence writes a fence, as it is in the record and in the command.
func appendFence(dst []byte, f Fence) []byte {
	closed := byte(0)
	if f.Closed {
		closed = 1
	}
	return append(binary.AppendUvarint(append(dst, fenceForm), f.Epoch), closed)
}

func decodeFence(v []byte) (Fence, error) {
	if len(v) == 0 {
		return Fence{}, errBadFence
	}
	if v[0] != fenceForm {
		return Fence{}, fmt.Errorf("fence of form %d: %w", v[0], keys.ErrNewer)
	}
	v = v[1:]
	epoch, n := binary.Uvarint(v)
	if n <= 0 || len(v) != n+1 || v[n] > 1 {
		return Fence{}, errBadFence
	}
	return Fence{Epoch: epoch, Closed: v[n] == 1}, nil
}

// readFence returns the zero fence for a shard that never had one.
func readFence(r pebble.Reader, prefix []byte) (f Fence, err error) {
	v, closer, err := r.Get(fenceKey(prefix))
	if errors.Is(err, pebble.ErrNotFound) {
		return Fence{}, nil
	}
	if err != nil {
		return Fence{}, fmt.Errorf("read fence: %w", err)
	}
	f, err = decodeFence(v)
	return f, errors.Join(err, closer.Close())
}

// appendGuard writes what goes before a guarded command's own kind and payload.
func appendGuard(dst []byte, g *Guard) []byte {
	dst = binary.AppendUvarint(dst, g.Epoch)
	dst = binary.AppendUvarint(dst, uint64(len(g.Leases)))
	if len(g.Leases) == 0 {
		return dst
	}
	for _, id := range g.Leases {
		dst = binary.AppendVarint(dst, id)
	}
	return keys.AppendSet(dst, g.Writable)
}

var errBadGuard = errors.New("malformed guarded command")

// cutGuard reads what appendGuard wrote and returns what follows.
func cutGuard(src []byte) (g Guard, rest []byte, err error) {
	var n int
	if g.Epoch, n = binary.Uvarint(src); n <= 0 {
		return Guard{}, nil, errBadGuard
	}
	src = src[n:]
	count, n := binary.Uvarint(src)
	if n <= 0 || count > uint64(len(src)) {
		return Guard{}, nil, errBadGuard
	}
	src = src[n:]
	if count == 0 {
		return g, src, nil
	}
	for range count {
		id, n := binary.Varint(src)
		if n <= 0 {
			return Guard{}, nil, errBadGuard
		}
		g.Leases = append(g.Leases, id)
		src = src[n:]
	}
	g.Writable, rest, err = keys.CutSet(src)
	return g, rest, err
}

// Fence returns the fence that this replica has applied. Whoever has read the
// shard's state before finds here at least the fence that state was under.
func (d *Data) Fence() Fence { return *d.fence.Load() }

// Raise fences the shard, unless it is fenced at a later epoch already. A replica that
// has applied the entry at index knows of it. Errors are those of Replica.Propose.
func (d *Data) Raise(ctx context.Context, f Fence) (index uint64, err error) {
	if _, err := d.replica.Propose(ctx, raft.Kind(kindFence), appendFence(nil, f)); err != nil {
		return 0, err
	}
	return d.replica.Applied(), nil
}

// guarded puts a guard, if there is one, before a command.
func guarded(g *Guard, kind Kind, payload []byte) (Kind, []byte) {
	if g == nil {
		return kind, payload
	}
	return kindGuarded, append(append(appendGuard(nil, g), byte(kind)), payload...)
}

// EveryKey reports whether ok holds for every key of a lease, as this replica has
// applied them: behind a Confirm those are all that were attached before. ok must not call
// the shard.
func (d *Data) EveryKey(id int64, ok func(key []byte) bool) (every bool) {
	// While a snapshot takes the place of the state, the leases are there before their keys.
	d.replica.Between(func() { every = d.leases.Every(id, ok) })
	return every
}
