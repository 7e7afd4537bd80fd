package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// small is a call on the few keys of a small history.
type small struct {
	// key and value are what is put; a call without a key reads everything. With a
	// guard the put happens only if the key has that value.
	key, value, guard string
	guarded           bool
}

// seen is what a small call was answered.
type seen struct {
	// unknown says that there was no answer.
	unknown bool
	// put says that a guarded put happened; state is what a read saw.
	put   bool
	state string
}

// printState makes one string of a state, keys in order.
func printState(state map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(state)) {
		fmt.Fprintf(&b, "%s=%s ", k, state[k])
	}
	return b.String()
}

func parseState(s string) map[string]string {
	state := make(map[string]string)
	for _, f := range strings.Fields(s) {
		k, v, _ := strings.Cut(f, "=")
		state[k] = v
	}
	return state
}

// wholeKeyspace is the store as one object: every call concerns all keys.
func wholeKeyspace() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{""} },
		Step: func(state, input, output any) []any {
			in, ok := input.(small)
			out, ok2 := output.(seen)
			now, ok3 := state.(string)
			if !ok || !ok2 || !ok3 {
				return nil
			}
			if in.key == "" {
				if out.unknown || out.state == now {
					return []any{now}
				}
				return nil
			}
			keys := parseState(now)
			holds := !in.guarded || keys[in.key] == in.guard
			keys[in.key] = in.value
			next := printState(keys)
			switch {
			case out.unknown && holds:
				return []any{now, next}
			case out.unknown:
				return []any{now}
			case in.guarded && out.put != holds:
				return nil
			case holds:
				return []any{next}
			default:
				return []any{now}
			}
		},
		Equal: func(a, b any) bool { return a == b },
	}
	return model.ToModel()
}

// smallClient makes n calls and returns them.
func (c *cluster) smallClient(h *history, id, n int) []porcupine.Operation {
	rnd := rand.New(rand.NewPCG(c.options.seed, uint64(300+id)))
	var ops []porcupine.Operation
	last := make(map[string]string)
	for i := range n {
		p := c.any(rnd)
		if p == nil {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		in := small{value: fmt.Sprintf("%d.%d", id, i)}
		key := string('a'+rune(rnd.IntN(4))) + "/x"
		var o *op
		switch rnd.IntN(3) {
		case 0:
			in.key = key
			o = h.do(c.ctx, p, &pb.PutRequest{Key: []byte(key), Value: []byte(in.value)})
		case 1:
			in.key, in.guard, in.guarded = key, last[key], true
			compare := &pb.Compare{Key: []byte(key), Target: pb.Compare_VALUE, TargetUnion: &pb.Compare_Value{Value: []byte(in.guard)}}
			if in.guard == "" {
				compare = &pb.Compare{Key: []byte(key), Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{}}
			}
			o = h.do(c.ctx, p, &pb.TxnRequest{
				Compare: []*pb.Compare{compare}, Success: []*pb.RequestOp{wrapPut(&pb.PutRequest{Key: []byte(key), Value: []byte(in.value)})},
			})
		default:
			o = h.do(c.ctx, p, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
		}
		out := seen{unknown: o.outcome != answered}
		switch resp := o.resp.(type) {
		case *pb.TxnResponse:
			out.put = resp.GetSucceeded()
		case *pb.RangeResponse:
			state := make(map[string]string)
			for _, kv := range resp.GetKvs() {
				state[string(kv.Key)] = string(kv.Value)
			}
			last, out.state = state, printState(state)
		}
		end := o.end
		if out.unknown {
			end = 1 << 40
		}
		ops = append(ops, porcupine.Operation{ClientId: id*1000 + i, Input: in, Output: out, Call: o.begin, Return: end})
		time.Sleep(time.Duration(rnd.IntN(1000)) * time.Microsecond)
	}
	return ops
}

// Small histories of the whole keyspace, on four shards whose leaders change, have a
// serial order that agrees with real time.
func TestWholeKeyspaceIsLinearizable(t *testing.T) {
	s := seed(t)
	for round := range uint64(sized(4, 200)) {
		var ops []porcupine.Operation
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, options{seed: s + round, splits: fourShards, snapshotEntries: 400})
			defer c.close()
			c.net.setFaults(faults{lose: 5, repeat: 10, reorder: 10, late: 20 * time.Millisecond, loseCall: 5, loseAnswer: 5, slow: 300})
			w := newWorkload(t, c)
			chaos{transfers: 50 * time.Millisecond, campaigns: 200 * time.Millisecond, cuts: 300 * time.Millisecond, deaths: time.Second}.wreak(w)
			h := &history{}
			var mu sync.Mutex
			var clients sync.WaitGroup
			for id := range 6 {
				clients.Go(func() {
					mine := c.smallClient(h, id, 40)
					mu.Lock()
					defer mu.Unlock()
					ops = append(ops, mine...)
				})
			}
			clients.Wait()
			close(w.stop)
			w.wg.Wait()
		})
		verdict, _ := porcupine.CheckOperationsVerbose(wholeKeyspace(), ops, time.Minute)
		if verdict != porcupine.Ok {
			t.Errorf("round %d: %v of %d calls", round, verdict, len(ops))
		}
	}
}

// The model refuses what the test is about: a read that misses an acknowledged write.
func TestWholeKeyspaceModelRefuses(t *testing.T) {
	ops := []porcupine.Operation{
		{ClientId: 1, Input: small{key: "a/x", value: "1"}, Output: seen{}, Call: 1, Return: 2},
		{ClientId: 2, Input: small{key: "b/x", value: "2"}, Output: seen{}, Call: 3, Return: 4},
		{ClientId: 3, Input: small{}, Output: seen{state: "b/x=2 "}, Call: 1, Return: 6},
	}
	if porcupine.CheckOperations(wholeKeyspace(), ops) {
		t.Error("a causal reverse was taken for an order")
	}
}
