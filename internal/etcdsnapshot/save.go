package etcdsnapshot

import (
	"io"
	"maps"
	"slices"

	"go.etcd.io/bbolt"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/backup"
)

// Save writes the snapshot as a backup of Latchkey that holds the same, as clients save one. The
// same snapshot becomes the same bytes.
func (s *Snapshot) Save(w io.Writer) error {
	return backup.Save(w, s.summary.Revision, func(b *backup.Writer) error {
		for _, id := range slices.Sorted(maps.Keys(s.leases)) {
			b.Lease(&pb.LeaseGrantRequest{ID: id, TTL: s.leases[id]})
		}
		b.Auth(s.auth)
		for _, role := range s.roles {
			b.Role(role)
		}
		for _, user := range s.users {
			b.User(user)
		}
		return s.db.View(func(tx *bbolt.Tx) error { return s.writeKeys(tx.Bucket(keyBucket), b) })
	})
}

func (s *Snapshot) writeKeys(from *bbolt.Bucket, b *backup.Writer) error {
	for _, key := range slices.Sorted(maps.Keys(s.keys)) {
		kv := &mvccpb.KeyValue{}
		if err := proto.Unmarshal(from.Get(s.keys[key].key()), kv); err != nil || string(kv.Key) != key {
			return damaged("key %q is not found again: %v", key, err)
		}
		// A key whose lease is gone stays for ever in etcd. Here it has none.
		if _, ok := s.leases[kv.Lease]; !ok {
			kv.Lease = 0
		}
		if b.Key(kv); b.Err() != nil {
			return b.Err()
		}
	}
	return nil
}
