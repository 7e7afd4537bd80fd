package etcdsnapshot

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/lease/leasepb"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/internal/backup"
)

const (
	// maxRevision leaves revisions for what comes.
	maxRevision = 1 << 62
	// maxTTL is the longest time to live of a lease in etcd, in seconds.
	maxTTL = 9_000_000_000
	// newestMajor and newestMinor are of the newest etcd whose database is known.
	newestMajor, newestMinor = 3, 7
)

// contents are what a snapshot holds, of keys where they are.
type contents struct {
	summary backup.Summary
	// keys are those that are there, with the revision at which they last changed.
	keys   map[string]revision
	leases map[int64]int64 // the time to live, by id
	auth   *pb.AuthStatusResponse
	roles  []*authpb.Role
	users  []*authpb.User
}

var (
	keyBucket  = []byte("key")
	metaBucket = []byte("meta")
)

// read by the names of buckets; of the others nothing is kept.
var read = map[string]func(c *contents, k, v []byte) error{
	string(keyBucket):  (*contents).key,
	string(metaBucket): (*contents).meta,
	"lease":            (*contents).lease,
	"auth":             (*contents).setting,
	"authUsers":        (*contents).user,
	"authRoles":        (*contents).role,
}

// readContents reads all records. The summary's hash is that of etcdutl.
func readContents(db *bbolt.DB) (contents, error) {
	c := contents{keys: make(map[string]revision), leases: make(map[int64]int64), auth: &pb.AuthStatusResponse{AuthRevision: 1}}
	c.summary = backup.Summary{Version: "etcd", Revision: 1} // an etcd begins with that
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	err := db.View(func(tx *bbolt.Tx) error {
		c.summary.Size = tx.Size()
		meta := tx.Bucket(metaBucket)
		if meta == nil || tx.Bucket(keyBucket) == nil {
			return fmt.Errorf("%w: it is a database of bbolt, and has not the buckets of etcd's", backup.ErrForeign)
		}
		// First: a newer version may have anything in its other records.
		if err := c.version(meta.Get([]byte("storageVersion"))); err != nil {
			return err
		}
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			_, _ = sum.Write(name) // never fails, as below
			add := read[string(name)]
			return b.ForEach(func(k, v []byte) error {
				_, _ = sum.Write(k)
				_, _ = sum.Write(v)
				if add == nil {
					return nil
				}
				return add(&c, k, v)
			})
		})
	})
	c.summary.Hash = sum.Sum32()
	c.summary.Keys, c.summary.Leases, c.summary.Users, c.summary.Roles = len(c.keys), len(c.leases), len(c.users), len(c.roles)
	return c, err
}

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", backup.ErrDamaged, fmt.Sprintf(format, args...))
}

// revision is of a change: the store's, and its place among the changes of that.
type revision struct{ main, sub int64 }

const (
	revisionBytes = 17
	tombstone     = 't' // behind the revision at which a key was deleted
)

// key is what the bucket of keys has a record under.
func (r revision) key() []byte {
	b := append(binary.BigEndian.AppendUint64(nil, uint64(r.main)), '_')
	return binary.BigEndian.AppendUint64(b, uint64(r.sub))
}

// parseRevision reads a revision, and reports whether a key was deleted there.
func parseRevision(b []byte) (r revision, deleted bool, err error) {
	if len(b) == revisionBytes+1 && b[revisionBytes] == tombstone {
		b, deleted = b[:revisionBytes], true
	}
	if len(b) != revisionBytes || b[8] != '_' {
		return r, false, damaged("%x is no revision", b)
	}
	r = revision{main: int64(binary.BigEndian.Uint64(b)), sub: int64(binary.BigEndian.Uint64(b[9:]))}
	if r.main < 0 || r.main > maxRevision || r.sub < 0 {
		return r, false, damaged("%x is no revision", b)
	}
	return r, deleted, nil
}

// key takes note of a change of a key. They come in the order of revisions.
func (c *contents) key(k, v []byte) error {
	r, deleted, err := parseRevision(k)
	if err != nil {
		return err
	}
	var kv mvccpb.KeyValue
	if err := proto.Unmarshal(v, &kv); err != nil {
		return damaged("the record of revision %d: %v", r.main, err)
	}
	c.summary.Revision = max(c.summary.Revision, r.main)
	switch {
	case len(kv.Key) == 0:
		return damaged("the record of revision %d has no key", r.main)
	case deleted:
		delete(c.keys, string(kv.Key))
	case kv.ModRevision != r.main || kv.CreateRevision < 1 || kv.CreateRevision > r.main || kv.Version < 1:
		return damaged("key %q of revision %d was created at %d, changed at %d and has version %d", kv.Key, r.main, kv.CreateRevision, kv.ModRevision, kv.Version)
	default:
		c.keys[string(kv.Key)] = r
	}
	return nil
}

func (c *contents) lease(k, v []byte) error {
	var l leasepb.Lease
	if err := proto.Unmarshal(v, &l); err != nil {
		return damaged("a lease: %v", err)
	}
	if l.ID == 0 || !bytes.Equal(k, binary.BigEndian.AppendUint64(nil, uint64(l.ID))) || l.TTL < 1 || l.TTL > maxTTL {
		return damaged("lease %x with a time to live of %d s stands where %x does", l.ID, l.TTL, k)
	}
	c.leases[l.ID] = l.TTL
	return nil
}

func (c *contents) setting(k, v []byte) error {
	switch string(k) {
	case "authEnabled":
		if len(v) != 1 || v[0] > 1 {
			return damaged("whether users are checked is %x", v)
		}
		c.auth.Enabled = v[0] == 1
	case "authRevision":
		if len(v) != 8 {
			return damaged("the revision of users is %x", v)
		}
		c.auth.AuthRevision = max(binary.BigEndian.Uint64(v), 1)
	}
	return nil
}

func (c *contents) user(k, v []byte) error {
	u := &authpb.User{}
	if err := proto.Unmarshal(v, u); err != nil || !bytes.Equal(k, u.Name) {
		return damaged("user %q: %q, %v", k, u.Name, err)
	}
	c.users = append(c.users, u)
	return nil
}

func (c *contents) role(k, v []byte) error {
	r := &authpb.Role{}
	if err := proto.Unmarshal(v, r); err != nil || !bytes.Equal(k, r.Name) {
		return damaged("role %q: %q, %v", k, r.Name, err)
	}
	c.roles = append(c.roles, r)
	return nil
}

// meta takes note of compactions: what was compacted may have been all that happened at its
// revision.
func (c *contents) meta(k, v []byte) error {
	if name := string(k); name != "scheduledCompactRev" && name != "finishedCompactRev" {
		return nil
	}
	r, _, err := parseRevision(v)
	c.summary.Revision = max(c.summary.Revision, r.main)
	return err
}

// version takes the version of the database, which etcd writes since 3.6.
func (c *contents) version(v []byte) error {
	if v == nil {
		return nil
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(v), "%d.%d.", &major, &minor); err != nil {
		return damaged("its version is %q", v)
	}
	if major > newestMajor || major == newestMajor && minor > newestMinor {
		return fmt.Errorf("%w: of etcd %s, and the newest known is %d.%d; copy the keys from the running etcd with etcdctl make-mirror instead",
			backup.ErrVersion, v, newestMajor, newestMinor)
	}
	c.summary.Version = "etcd " + string(v)
	return nil
}
