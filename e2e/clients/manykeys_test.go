package clients

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// manyKeys are divided evenly among eight shards, and have values of manyValue bytes.
var (
	manyKeys  = harness.Sized(25_000, 100_000)
	manySplit = strings.Join(manySplits(), ",")
)

const manyValue = 100

func manyKey(i int) string { return fmt.Sprintf("many/%06d", i) }

func manySplits() (keys []string) {
	const shards = 8
	for i := range shards - 1 {
		keys = append(keys, manyKey((i+1)*manyKeys/shards))
	}
	return keys
}

// fillMany puts manyKeys keys, as many together as a transaction may.
func fillMany(t *testing.T, c *clientv3.Client) {
	t.Helper()
	const each = 125
	value := strings.Repeat("v", manyValue)
	for i := 0; i < manyKeys; i += each {
		ops := make([]clientv3.Op, each)
		for j := range ops {
			ops[j] = clientv3.OpPut(manyKey(i+j), value)
		}
		_, err := c.Txn(t.Context()).Then(ops...).Commit()
		harness.Must(t, "fill", err)
	}
}

// A deletion of very many keys on eight shards is one revision, and answers with all of them where
// that is asked for.
func TestDeleteOfManyKeysOverShards(t *testing.T) {
	p := harness.NewProcess(t, harness.SplitsFlag, manySplit)
	c := p.Client()
	defer c.Close()
	for _, asks := range []struct {
		name    string
		options []clientv3.OpOption
	}{
		{"without values", nil},
		{"with values", []clientv3.OpOption{clientv3.WithPrevKV()}},
	} {
		fillMany(t, c)
		before, err := c.Get(t.Context(), "x")
		harness.Must(t, "revision", err)
		rss, began := p.RSS(), time.Now()
		r, err := c.Delete(t.Context(), "", append(asks.options, clientv3.WithPrefix())...)
		harness.Must(t, "delete", err)
		t.Logf("%s: %v, %d MiB more", asks.name, time.Since(began), (p.RSS()-rss)/harness.MiB)
		if r.Deleted != int64(manyKeys) || len(r.PrevKvs) != len(asks.options)*manyKeys {
			t.Errorf("%s: %d keys were deleted, %d answered", asks.name, r.Deleted, len(r.PrevKvs))
		}
		for i, kv := range r.PrevKvs {
			if string(kv.Key) != manyKey(i) || len(kv.Value) != manyValue {
				t.Fatalf("%s: answer %d is %v", asks.name, i, kv)
			}
		}
		for i, e := range oneRevision(t, c, before.Header.Revision+1, manyKeys) {
			if string(e.Kv.Key) != manyKey(i) || e.Kv.ModRevision != r.Header.Revision {
				t.Fatalf("%s: event %d is %v, deleted at revision %d", asks.name, i, e, r.Header.Revision)
			}
		}
		t.Logf("%s: with events %v", asks.name, time.Since(began))
		if left := keysOf(t, c); len(left) != 0 {
			t.Errorf("%s: %d keys are left", asks.name, len(left))
		}
	}
}
