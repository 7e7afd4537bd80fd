package mvcc

import (
	"bytes"
	"cmp"

	"github.com/tidwall/btree"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// creation is when a current key was created, and where. It is immutable.
type creation struct {
	key    []byte
	create int64
	// dir is the length of the key's directory.
	dir int
}

func (b *creation) directory() []byte { return b.key[:b.dir] }

// creationTree holds creations, ordered by directory, create revision and key.
type creationTree = btree.BTreeG[*creation]

func newCreationTree() *creationTree {
	return btree.NewBTreeGOptions(func(a, b *creation) bool {
		if c := bytes.Compare(a.directory(), b.directory()); c != 0 {
			return c < 0
		}
		if c := cmp.Compare(a.create, b.create); c != 0 {
			return c < 0
		}
		return bytes.Compare(a.key, b.key) < 0
	}, btree.Options{Degree: treeDegree, NoLocks: true})
}

func newCreation(it *item) *creation {
	return &creation{key: it.key, create: it.create, dir: len(keys.Directory(it.key))}
}

// creations is the index of current keys by creation. Most stores are never asked for it, so that it
// is begun with the first request that it would answer, and takes in the keys that there are a part at a
// time: each applied batch takes one, in key order. Until it has all of them such requests are
// answered without it. It belongs to the goroutine that applies commands.
type creations struct {
	// tree is nil before the index was begun.
	tree *creationTree
	// next is the least key that may be missing. Invariant: the tree has the creations of
	// all current keys below next, and no others; of all current keys once whole is set.
	next  []byte
	whole bool
	hint  btree.PathHint
}

// creationsStep is the number of keys that a batch takes in: about a millisecond's work.
const creationsStep = 4096

// covers reports whether a key's creation belongs into the tree.
func (c *creations) covers(key []byte) bool { return c.whole || bytes.Compare(key, c.next) < 0 }

// created says that a key that did not exist has a first version now, it.
func (c *creations) created(it *item) {
	if c.covers(it.key) {
		c.tree.SetHint(newCreation(it), &c.hint)
	}
}

// deleted says that a key whose last version was it exists no longer.
func (c *creations) deleted(it *item) {
	if c.covers(it.key) {
		c.tree.DeleteHint(newCreation(it), &c.hint)
	}
}

// grow takes in the next n of the current keys.
func (c *creations) grow(cur *tree, n int) {
	if c.whole {
		return
	}
	if c.tree == nil {
		c.tree = newCreationTree()
	}
	c.whole = true
	cur.Ascend(&item{key: c.next}, func(it *item) bool {
		if n == 0 {
			c.next, c.whole = it.key, false
			return false
		}
		n--
		c.tree.SetHint(newCreation(it), &c.hint)
		return true
	})
}

// working returns the tree if it answers requests, or nil.
func (c *creations) working() *creationTree {
	if !c.whole {
		return nil
	}
	return c.tree
}

// published returns a copy of the tree for readers if it answers requests, or nil.
func (c *creations) published() *creationTree {
	if t := c.working(); t != nil {
		return t.Copy()
	}
	return nil
}
