package lock

import (
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/lock/queue"
)

// without returns the calls but for one attempt, and whether that was among them.
func without(calls []queue.Call, attempt string) ([]queue.Call, bool) {
	at := slices.IndexFunc(calls, func(c queue.Call) bool { return c.Attempt == attempt })
	if at < 0 {
		return calls, false
	}
	return slices.Delete(slices.Clone(calls), at, at+1), true
}

// with returns the calls with one more, or made anew.
func with(calls []queue.Call, call queue.Call) []queue.Call {
	calls = slices.Clone(calls)
	at := slices.IndexFunc(calls, func(c queue.Call) bool { return c.ID == call.ID })
	if at < 0 {
		return append(calls, call)
	}
	calls[at] = call
	return calls
}

// withoutID returns the calls but for one request.
func withoutID(calls []queue.Call, id string) []queue.Call {
	return slices.DeleteFunc(slices.Clone(calls), func(c queue.Call) bool { return c.ID == id })
}

// isGuard reports whether a key is that of a guard.
func isGuard(kv *mvccpb.KeyValue) bool { return queue.EntryOf(kv).Guards }

// written reports whether a place is of an acquire, whose value says so.
func written(kv *mvccpb.KeyValue) bool { return len(queue.EntryOf(kv).Calls) > 0 }
