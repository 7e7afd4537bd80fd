package histories

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// historyKeys is the number of keys that histories are about; the last of them
// are locks.
const (
	historyKeys  = 6
	historyLocks = 2
)

type histKind int

const (
	histGet histKind = iota
	histList
	histPut
	histDelete
	histSwap   // put if the key is as it was seen
	histPair   // put two keys
	histLock   // create if there is none
	histUnlock // delete if it is the one that was created
	histKinds
)

// histInput is what a client asks for.
type histInput struct {
	kind histKind
	// key is what it is about, other the second key of a pair.
	key, other int
	// value is drawn once: no two writes have the same.
	value int64
	// rev is the revision that a swap or an unlock compares.
	rev int64
}

// histEntry is a key's state; zero is a missing key.
type histEntry struct{ value, create, mod, version int64 }

// histOutput is what a client was answered.
type histOutput struct {
	// unknown is set when there was no answer: the write may have happened, or may
	// happen later.
	unknown bool
	rev     int64
	// done says that something was changed.
	done bool
	// got are the keys that were read.
	got [historyKeys]histEntry
}

// histState is the whole store.
type histState struct {
	rev int64
	kv  [historyKeys]histEntry
}

// apply runs an operation on the state and returns what it becomes and what the
// answer must be.
func (s histState) apply(in histInput) (histState, histOutput) {
	next, out := s, histOutput{}
	put := func(key int, value int64) {
		e := &next.kv[key]
		if e.create == 0 {
			e.create = next.rev
		}
		e.value, e.mod, e.version = value, next.rev, e.version+1
		out.done = true
	}
	is := s.kv[in.key]
	switch in.kind {
	case histGet:
		out.got[in.key] = is
	case histList:
		out.got = s.kv
	case histPut:
		next.rev++
		put(in.key, in.value)
	case histPair:
		next.rev++
		put(in.key, in.value)
		put(in.other, in.value)
	case histDelete:
		if out.done = is.create != 0; out.done {
			next.rev++
			next.kv[in.key] = histEntry{}
		}
	case histSwap:
		if is.mod != in.rev {
			out.got[in.key] = is
			break
		}
		next.rev++
		put(in.key, in.value)
	case histLock:
		if is.create != 0 {
			out.got[in.key] = is
			break
		}
		next.rev++
		put(in.key, in.value)
	case histUnlock:
		if out.done = is.create == in.rev; out.done {
			next.rev++
			next.kv[in.key] = histEntry{}
		}
	case histKinds:
	}
	out.rev = next.rev
	return next, out
}

// histOp is one call of a client, with the times at which it began and ended on
// the test's clock.
type histOp struct {
	client       int
	in           histInput
	out          histOutput
	begin, ended int64
}

func histKey(i int) string { return "h/" + strconv.Itoa(i) }

// histValue is a value with padding, so that events have different sizes.
func histValue(v int64) []byte {
	return fmt.Appendf(nil, "%d/%s", v, bytes.Repeat([]byte("."), int(v*7919%12_000)))
}

// histEntryOf reads back what was stored.
func histEntryOf(kv *mvccpb.KeyValue) (int, histEntry, error) {
	key, err := strconv.Atoi(string(bytes.TrimPrefix(kv.Key, []byte("h/"))))
	if err != nil {
		return 0, histEntry{}, fmt.Errorf("key %q: %w", kv.Key, err)
	}
	number, _, _ := bytes.Cut(kv.Value, []byte("/"))
	value, err := strconv.ParseInt(string(number), 10, 64)
	if err != nil {
		return 0, histEntry{}, fmt.Errorf("value of %s: %w", kv.Key, err)
	}
	if !bytes.Equal(kv.Value, histValue(value)) {
		return 0, histEntry{}, fmt.Errorf("value %d of %s is damaged", value, kv.Key)
	}
	return key, histEntry{value, kv.CreateRevision, kv.ModRevision, kv.Version}, nil
}

// history is one run of clients, with what they were answered.
type history struct {
	t      *testing.T
	s      *harness.Served
	shards int
	epoch  time.Time
	values atomic.Int64
	done   atomic.Int64

	mu  sync.Mutex
	ops []histOp
}

func (h *history) now() int64 { return int64(time.Since(h.epoch)) }

// client makes random calls, one after the other.
func (h *history) client(id, calls int, rnd *rand.Rand) {
	var seen, tokens [historyKeys]int64
	for range calls {
		in := h.draw(rnd, &seen, &tokens)
		op := histOp{client: id, in: in, begin: h.now()}
		ctx, cancel := context.WithTimeout(h.t.Context(), 10*time.Second)
		out, err := h.call(ctx, in)
		cancel()
		op.out, op.ended = out, h.now()
		h.done.Add(1)
		if err != nil {
			if in.kind == histGet || in.kind == histList {
				continue // says nothing
			}
			op.out = histOutput{unknown: true}
		}
		for i, e := range out.got {
			if e.mod != 0 {
				seen[i] = e.mod
			}
		}
		switch {
		case in.kind == histLock && out.done:
			tokens[in.key] = out.rev
		case in.kind == histUnlock:
			tokens[in.key] = 0
		case out.done && in.kind != histDelete:
			seen[in.key] = out.rev
		}
		h.mu.Lock()
		h.ops = append(h.ops, op)
		h.mu.Unlock()
	}
}

// draw chooses the next operation. A client that holds a lock is likely to give it
// back.
func (h *history) draw(rnd *rand.Rand, seen, tokens *[historyKeys]int64) histInput {
	in := histInput{kind: histKind(rnd.IntN(int(histKinds))), value: h.values.Add(1)}
	const data = historyKeys - historyLocks
	in.key = rnd.IntN(data)
	switch in.kind {
	case histLock, histUnlock:
		in.key = data + rnd.IntN(historyLocks)
		if tokens[in.key] != 0 {
			in.kind = histUnlock
			in.rev = tokens[in.key]
		} else {
			in.kind = histLock
		}
	case histPair:
		in.other = (in.key + 1 + rnd.IntN(data-1)) % data
		if h.shards > 1 {
			in.other = in.key ^ 1 // in the same shard
		}
	case histSwap:
		if rnd.IntN(5) > 0 {
			in.rev = seen[in.key]
		}
	case histGet, histList, histPut, histDelete, histKinds:
	}
	return in
}

// call makes one call.
func (h *history) call(ctx context.Context, in histInput) (histOutput, error) {
	key, value := histKey(in.key), string(histValue(in.value))
	switch in.kind {
	case histGet:
		r, err := h.s.KV.Range(ctx, &pb.RangeRequest{Key: []byte(key)})
		return h.read(r, err)
	case histList:
		r, err := h.s.KV.Range(ctx, harness.UnderPrefix("h/", &pb.RangeRequest{}))
		return h.read(r, err)
	case histPut:
		r, err := h.s.KV.Put(ctx, &pb.PutRequest{Key: []byte(key), Value: []byte(value)})
		return histOutput{rev: r.GetHeader().GetRevision(), done: true}, err
	case histDelete:
		r, err := h.s.KV.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte(key)})
		return histOutput{rev: r.GetHeader().GetRevision(), done: r.GetDeleted() > 0}, err
	case histSwap, histPair, histLock, histUnlock, histKinds:
	}
	compare := &pb.Compare{Key: []byte(key), Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{CreateRevision: in.rev}}
	read := []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(key)}}}}
	txn := &pb.TxnRequest{Compare: []*pb.Compare{compare}, Success: []*pb.RequestOp{harness.OpPut(key, value)}}
	switch in.kind {
	case histSwap:
		compare.Target, compare.TargetUnion = pb.Compare_MOD, &pb.Compare_ModRevision{ModRevision: in.rev}
		txn.Failure = read
	case histLock:
		txn.Failure = read
	case histUnlock:
		txn.Success = []*pb.RequestOp{harness.OpDelete(key, "")}
	case histPair:
		txn.Compare = nil
		txn.Success = append(txn.Success, harness.OpPut(histKey(in.other), value))
	case histGet, histList, histPut, histDelete, histKinds:
	}
	r, err := h.s.KV.Txn(ctx, txn)
	if err != nil {
		return histOutput{}, err
	}
	out := histOutput{}
	if len(r.Responses) > 0 && r.Responses[0].GetResponseRange() != nil {
		out, err = h.read(r.Responses[0].GetResponseRange(), nil)
	}
	out.rev, out.done = r.Header.Revision, r.Succeeded
	return out, err
}

func (h *history) read(r *pb.RangeResponse, err error) (histOutput, error) {
	out := histOutput{rev: r.GetHeader().GetRevision()}
	for _, kv := range r.GetKvs() {
		key, e, err := histEntryOf(kv)
		if err != nil {
			h.t.Error(err)
			continue
		}
		out.got[key] = e
	}
	return out, err
}

// histSize says how large a history is.
type histSize struct{ clients, calls, kills, shards int }

// runHistory lets clients call a server that is killed and started again while they
// do, and returns when all have finished.
func runHistory(t *testing.T, s *harness.Served, seed uint64, size histSize) *history {
	t.Helper()
	h := &history{t: t, s: s, shards: size.shards, epoch: time.Now()}
	var clients sync.WaitGroup
	for id := range size.clients {
		clients.Go(func() { h.client(id, size.calls, rand.New(rand.NewPCG(seed, uint64(id)))) })
	}
	rnd := rand.New(rand.NewPCG(seed, 1<<32))
	total := int64(size.clients * size.calls)
	for k := range size.kills {
		// Somewhere in the k-th part.
		at := total*int64(k)/int64(size.kills) + rnd.Int64N(total/int64(size.kills))
		for h.done.Load() < at {
			wait := time.NewTimer(time.Millisecond)
			<-wait.C
		}
		s.Restart()
	}
	clients.Wait()
	return h
}

// eventLog returns what changed after a revision, up to another, by revision. The
// store must still have it all.
func eventLog(s *harness.Served, after, upTo int64) map[int64][]*mvccpb.Event {
	s.T.Helper()
	log := make(map[int64][]*mvccpb.Event)
	if after == upTo {
		return log
	}
	w := s.OpenWatch()
	defer w.Stop()
	w.Create(&pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: after + 1, PrevKv: true})
	w.Created()
	// The last revisions may have changed nothing, which progress tells.
	w.Progress()
	for at := after; at < upTo; {
		r := w.Next()
		if r.Canceled {
			s.T.Fatalf("history ends: %v", r)
		}
		at = r.Header.Revision
		for _, e := range r.Events {
			at = e.Kv.ModRevision
			log[at] = append(log[at], e)
		}
	}
	return log
}

// settle looks up in the log what became of the writes without an answer: the value
// that a put would have written is there, at the revision at which it happened, or
// is not. Deletes leave no such trace and stay unknown.
func (h *history) settle(log map[int64][]*mvccpb.Event) {
	h.t.Helper()
	at := make(map[int64]int64)
	for rev, events := range log {
		for _, e := range events {
			if e.Type != mvccpb.Event_PUT {
				continue
			}
			_, entry, err := histEntryOf(e.Kv)
			if err != nil {
				h.t.Error(err)
			}
			at[entry.value] = rev
		}
	}
	h.ops = slices.DeleteFunc(h.ops, func(op histOp) bool {
		return op.out.unknown && op.in.writes() && at[op.in.value] == 0
	})
	for i := range h.ops {
		if op := &h.ops[i]; op.out.unknown {
			op.ended = math.MaxInt64
			if op.in.writes() {
				op.out = histOutput{rev: at[op.in.value], done: true}
			}
		}
	}
}

// headerFault holds the revisions of answers against each other: none is below one
// that was answered before the call began, and a change is above. It tells what is
// wrong.
func (h *history) headerFault() string {
	var ended, begun []histOp
	for _, op := range h.ops {
		if !op.out.unknown {
			begun = append(begun, op)
			ended = append(ended, op)
		}
	}
	slices.SortFunc(begun, func(a, b histOp) int { return cmp.Compare(a.begin, b.begin) })
	slices.SortFunc(ended, func(a, b histOp) int { return cmp.Compare(a.ended, b.ended) })
	highest := int64(0)
	for _, op := range begun {
		for len(ended) > 0 && ended[0].ended < op.begin {
			highest = max(highest, ended[0].out.rev)
			ended = ended[1:]
		}
		if op.out.rev < highest || op.out.done && op.out.rev == highest {
			return fmt.Sprintf("%+v was answered %+v after revision %d", op.in, op.out, highest)
		}
	}
	return ""
}

// count replaces the revisions above start, of which those given changed something,
// by numbers that count the changes, as the revisions of one shard do. What names a
// change that there was not becomes a number that no change has.
func (h *history) count(start int64, changes []int64) {
	number := func(rev int64) int64 {
		if rev <= start {
			return rev
		}
		n, found := slices.BinarySearch(changes, rev)
		if found {
			n++
		}
		return start + int64(n)
	}
	change := func(rev int64) int64 {
		if _, found := slices.BinarySearch(changes, rev); rev > start && !found {
			return -rev
		}
		return number(rev)
	}
	for i := range h.ops {
		op := &h.ops[i]
		op.in.rev, op.out.rev = change(op.in.rev), number(op.out.rev)
		for k := range op.out.got {
			e := &op.out.got[k]
			e.create, e.mod = change(e.create), change(e.mod)
		}
	}
}

// unanswered counts the operations whose outcome is unknown.
func (h *history) unanswered() int {
	n := 0
	for _, op := range h.ops {
		if op.out.unknown {
			n++
		}
	}
	return n
}

// writes reports whether the operation leaves its value in the store if it happens.
func (in histInput) writes() bool { return in.kind != histDelete && in.kind != histUnlock }
