package mvcc

import (
	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// Restorer writes a store that begins with keys as they were elsewhere, where no store has been
// opened yet. What happened to them before is not known: it is compacted.
type Restorer struct {
	layout layout
	// added is the logical size of the keys so far.
	added int64
}

// NewRestorer returns a restorer of the store that is to lie below prefix, which it keeps.
func NewRestorer(prefix []byte) *Restorer {
	return &Restorer{layout: layout{prefix: prefix}}
}

// Put adds a key as it is, with its revisions.
func (r *Restorer) Put(b *pebble.Batch, kv *mvccpb.KeyValue) error {
	it := item{
		key: kv.Key, create: kv.CreateRevision, mod: kv.ModRevision, version: kv.Version, lease: kv.Lease, size: int32(len(kv.Value)),
	}
	r.added += it.bytes()
	return b.Set(r.layout.appendVersion(nil, it.key, it.mod, it.sub), appendRecord(nil, &it, kv.Value), nil)
}

// Finish makes rev the store's revision and compact, which is above all revisions of keys and not
// above rev, its compaction revision: up to the one before it there may have been any change.
func (r *Restorer) Finish(b *pebble.Batch, rev, compact int64) error {
	for name, v := range map[string][]byte{
		metaApplied: applied{rev: rev, compact: compact, added: r.added}.encode(),
		metaSwept:   swept{rev: compact}.encode(),
		metaBase:    keys.AppendInt64(nil, compact-1),
	} {
		if err := b.Set(r.layout.meta(name), v, nil); err != nil {
			return err
		}
	}
	return nil
}
