package mvcc

import (
	"bytes"

	"github.com/tidwall/btree"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

const (
	// inlineValue is the length in bytes up to which the values of current keys
	// stay in memory: holders of locks write an address or nothing at all, services a little more.
	inlineValue = 128
	// versionOverhead is what a version counts beside its key and value, in
	// bytes. It stands for both storage keys and the record's head.
	versionOverhead = 48
)

// item is one version of a key. It is immutable once it is published.
type item struct {
	// key is shared by the versions of one key and by answers.
	key []byte
	// value is the value where it is kept in memory: up to inlineValue bytes, and any
	// before it is published. Invariant: it is nil or has size bytes.
	value                       []byte
	create, mod, version, lease int64
	// size is the length of the value.
	size int32
	sub  uint32
	// dead marks a tombstone; trees never hold one.
	dead bool
}

func (it *item) stamp() stamp { return stamp{it.mod, it.sub} }

// bytes is the logical size of the version.
func (it *item) bytes() int64 { return int64(len(it.key)) + int64(it.size) + versionOverhead }

// fill sets kv to the version without its value. kv shares the key.
func (it *item) fill(kv *mvccpb.KeyValue) {
	kv.Key = it.key
	kv.ModRevision = it.mod
	if it.dead {
		return
	}
	kv.CreateRevision = it.create
	kv.Version = it.version
	kv.Lease = it.lease
}

// tree holds the current version of each key, in key order.
type tree = btree.BTreeG[*item]

// treeDegree balances the copying of nodes that each applied batch causes
// against the depth of the trees.
const treeDegree = 16

func newTree() *tree {
	return btree.NewBTreeGOptions(func(a, b *item) bool {
		return bytes.Compare(a.key, b.key) < 0
	}, btree.Options{Degree: treeDegree, NoLocks: true})
}
