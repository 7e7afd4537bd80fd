package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// A queue is its keys by create revision, whatever comes and goes and comes twice.
func TestQueueModel(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	q := New(nil)
	var model []*mvccpb.KeyValue
	for rev := int64(1); rev < 5000; rev++ {
		key := []byte(fmt.Sprint(random.IntN(40)))
		at := slices.IndexFunc(model, func(kv *mvccpb.KeyValue) bool { return string(kv.Key) == string(key) })
		switch {
		case at < 0:
			kv := &mvccpb.KeyValue{Key: key, CreateRevision: rev, ModRevision: rev}
			model = append(model, kv)
			q.Put(kv)
			if random.IntN(4) == 0 { // in the same transaction
				twin := &mvccpb.KeyValue{Key: append([]byte("-"), key...), CreateRevision: rev, ModRevision: rev}
				model = slices.Insert(model, len(model)-1, twin)
				q.Put(twin)
			}
		case random.IntN(3) == 0:
			q.Put(&mvccpb.KeyValue{Key: key, CreateRevision: model[at].CreateRevision, ModRevision: rev})
		default:
			model = slices.Delete(model, at, at+1)
			q.Delete(string(key), rev)
			if twin := slices.IndexFunc(model, func(kv *mvccpb.KeyValue) bool { return string(kv.Key) == "-"+string(key) }); twin >= 0 {
				model = slices.Delete(model, twin, twin+1)
				q.Delete("-"+string(key), rev)
			}
		}
		var want, got, back []string
		for _, kv := range model {
			want = append(want, string(kv.Key))
		}
		for e := q.first; e != nil; e = e.next {
			got = append(got, e.Name)
		}
		for e := q.last; e != nil; e = e.prev {
			back = append(back, e.Name)
		}
		slices.Reverse(back)
		if !slices.Equal(got, want) || !slices.Equal(back, want) || len(q.byKey) != len(want) {
			t.Fatalf("at %d: %q and %q, want %q", rev, got, back, want)
		}
	}
}

// What was deleted before a key was made says nothing of it.
func TestQueueOldDeletion(t *testing.T) {
	q := New([]*mvccpb.KeyValue{{Key: []byte("a"), CreateRevision: 7, ModRevision: 7}})
	q.Delete("a", 6)
	if q.first == nil {
		t.Error("the key is gone")
	}
}
