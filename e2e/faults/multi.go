package faults

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// MultiRegisters reads and writes several keys on different shards by one transaction each, and
// has porcupine look for one order of what was answered.
type MultiRegisters struct {
	report  *Report
	clients []*clientv3.Client
	seed    uint64
	begin   time.Time

	mu sync.Mutex
	// ops are by the span of time in which they were called, each of which has keys of its own, so
	// that histories are short; protected by mu.
	ops map[int][]porcupine.Operation
}

const (
	multiRegisters = 4
	multiClients   = 6
	multiPause     = 60 * time.Millisecond
	// multiErrorPause keeps writes of unknown outcome few, of which an order is found with any
	// number of them at any places.
	multiErrorPause = time.Second
	multiSpan       = 10 * time.Second
)

// multi is the values of all registers.
type multi [multiRegisters]int64

// multiAccess is a read of all, or a write of a value into some, perhaps over a value of the first.
type multiAccess struct {
	write, cond bool
	into        [multiRegisters]bool
	value, over int64
}

// multiAnswer is what a read saw, or whether a write took place, and what it saw if not.
type multiAnswer struct {
	values  multi
	done    bool
	unknown bool
}

var multiModel = porcupine.Model{
	Init: func() any { return multi{} },
	Step: func(state, in, out any) (bool, any) {
		is, _ := state.(multi)
		a, _ := in.(multiAccess)
		o, _ := out.(multiAnswer)
		switch {
		case !a.write:
			return o.values == is, is
		case a.cond && is[0] != a.over:
			return o.unknown || !o.done && o.values == is, is
		}
		for i, into := range a.into {
			if into {
				is[i] = a.value
			}
		}
		return o.unknown || o.done, is
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
}

// NewMultiRegisters returns the workload.
func NewMultiRegisters(r *Report, seed uint64, clients []*clientv3.Client) *MultiRegisters {
	return &MultiRegisters{report: r, clients: clients, seed: seed, begin: time.Now(), ops: make(map[int][]porcupine.Operation)}
}

// Run reads and writes.
func (g *MultiRegisters) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for id := range multiClients {
		wg.Go(func() { g.client(ctx, id, rand.New(rand.NewPCG(g.seed, uint64(id)))) })
	}
	wg.Wait()
}

func (g *MultiRegisters) client(ctx context.Context, id int, rnd *rand.Rand) {
	c := g.clients[id%len(g.clients)]
	var seen int64 // of the first register
	last := -1
	for n := int64(1); ctx.Err() == nil; n++ {
		call := time.Since(g.begin)
		span := int(call / multiSpan)
		if span != last {
			last, seen = span, 0
		}
		a := multiAccess{write: rnd.IntN(2) == 0, cond: rnd.IntN(2) == 0, value: n*multiClients + int64(id) + 1, over: seen}
		for _, i := range rnd.Perm(multiRegisters)[:2+rnd.IntN(multiRegisters-1)] {
			a.into[i] = true
		}
		op := porcupine.Operation{ClientId: id, Input: a, Call: int64(call)}
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), attempt)
		out, err := g.access(try, c, span, a)
		cancel()
		op.Return = int64(time.Since(g.begin))
		if errors.Is(err, rpctypes.ErrNoSpace) {
			// It did nothing.
			sleep(ctx, multiPause)
			continue
		}
		if err != nil {
			// A write may happen at any time from now on; the client counts as another one.
			out, op.Return = multiAnswer{unknown: true}, math.MaxInt64
		}
		if err == nil || a.write {
			op.Output = out
			g.mu.Lock()
			g.ops[span] = append(g.ops[span], op)
			g.mu.Unlock()
		}
		if err == nil && !out.done {
			seen = out.values[0]
		}
		g.report.Operations.Add(1)
		sleep(ctx, multiPause)
		if err != nil {
			sleep(ctx, multiErrorPause)
		}
	}
}

func multiKey(span, i int) string { return fmt.Sprintf("%c/multi/%d/%d", 'b'+byte(i*7), span, i) }

func (g *MultiRegisters) access(ctx context.Context, c *clientv3.Client, span int, a multiAccess) (out multiAnswer, err error) {
	var reads, writes []clientv3.Op
	for i := range multiRegisters {
		reads = append(reads, clientv3.OpGet(multiKey(span, i)))
		if a.into[i] {
			writes = append(writes, clientv3.OpPut(multiKey(span, i), strconv.FormatInt(a.value, 10)))
		}
	}
	txn := c.Txn(ctx)
	switch first := multiKey(span, 0); {
	case !a.write:
		txn = txn.Then(reads...)
	case !a.cond:
		txn = txn.Then(writes...)
	case a.over == 0:
		txn = txn.If(clientv3.Compare(clientv3.CreateRevision(first), "=", 0)).Then(writes...).Else(reads...)
	default:
		txn = txn.If(clientv3.Compare(clientv3.Value(first), "=", strconv.FormatInt(a.over, 10))).Then(writes...).Else(reads...)
	}
	resp, err := txn.Commit()
	if err != nil || a.write && resp.Succeeded {
		return multiAnswer{done: err == nil}, err
	}
	for i, r := range resp.Responses {
		for _, kv := range r.GetResponseRange().Kvs {
			if out.values[i], err = strconv.ParseInt(string(kv.Value), 10, 64); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

// certain leaves out writes of unknown outcome that nobody has seen anything of. If there is an
// order with one there is an order without, and the other way round: it explains nothing.
func certain(ops []porcupine.Operation) []porcupine.Operation {
	seen := make(map[int64]bool)
	for _, op := range ops {
		a, _ := op.Input.(multiAccess)
		o, _ := op.Output.(multiAnswer)
		for _, v := range o.values {
			seen[v] = true
		}
		if a.cond && o.done {
			seen[a.over] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(ops), func(op porcupine.Operation) bool {
		a, _ := op.Input.(multiAccess)
		o, _ := op.Output.(multiAnswer)
		return o.unknown && !seen[a.value]
	})
}

// Check looks for an order of each span's history.
func (g *MultiRegisters) Check(context.Context) {
	for span, ops := range g.ops {
		switch porcupine.CheckOperationsTimeout(multiModel, certain(ops), checkTimeout) {
		case porcupine.Illegal:
			g.report.Violation("multi-key registers %d: %d operations have no order", span, len(ops))
		case porcupine.Unknown:
			g.report.Violation("multi-key registers %d: no order of %d operations was found in %v", span, len(ops), checkTimeout)
		case porcupine.Ok:
		}
	}
}
