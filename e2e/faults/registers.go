package faults

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Registers reads and writes some keys through all nodes and has porcupine look for an
// order of what was answered.
type Registers struct {
	report  *Report
	clients []*clientv3.Client
	seed    uint64
	begin   time.Time

	mu sync.Mutex
	// ops are by key; protected by mu.
	ops [registers][]porcupine.Operation
}

const (
	registers       = 6
	registerClients = 9
	// registerPause keeps histories short enough to be checked.
	registerPause = 20 * time.Millisecond
)

// access is a read, or a write of a value that nothing else writes; a conditional one is
// over a value that was seen.
type access struct {
	write, cond bool
	value, over int64
}

// answer is what a read saw, or whether a conditional write took place.
type answer struct {
	value   int64
	done    bool
	unknown bool
}

var registerModel = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, in, out any) (bool, any) {
		is, _ := state.(int64)
		a, _ := in.(access)
		o, _ := out.(answer)
		switch {
		case !a.write:
			return o.unknown || o.value == is, is
		case a.cond && is != a.over:
			return o.unknown || !o.done, is
		default:
			return o.unknown || o.done, a.value
		}
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
}

// NewRegisters returns the workload.
func NewRegisters(r *Report, seed uint64, clients []*clientv3.Client) *Registers {
	return &Registers{report: r, clients: clients, seed: seed, begin: time.Now()}
}

// Run reads and writes.
func (g *Registers) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for id := range registerClients {
		wg.Go(func() { g.client(ctx, id, rand.New(rand.NewPCG(g.seed, uint64(id)))) })
	}
	wg.Wait()
}

func (g *Registers) client(ctx context.Context, id int, rnd *rand.Rand) {
	c := g.clients[id%len(g.clients)]
	var seen [registers]int64
	for n := int64(1); ctx.Err() == nil; n++ {
		k := rnd.IntN(registers)
		a := access{write: rnd.IntN(2) == 0, cond: rnd.IntN(2) == 0, value: n*registerClients + int64(id) + 1, over: seen[k]}
		op := porcupine.Operation{ClientId: id, Input: a, Call: int64(time.Since(g.begin))}
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), attempt)
		out, err := g.access(try, c, k, a)
		cancel()
		op.Return = int64(time.Since(g.begin))
		if errors.Is(err, rpctypes.ErrNoSpace) {
			// It did nothing.
			sleep(ctx, registerPause)
			continue
		}
		if err != nil {
			// A write may happen at any time from now on; the client counts as another one.
			out, op.Return = answer{unknown: true}, math.MaxInt64
		}
		if err == nil || a.write {
			op.Output = out
			g.mu.Lock()
			g.ops[k] = append(g.ops[k], op)
			g.mu.Unlock()
		}
		if err == nil && !a.write {
			seen[k] = out.value
		}
		g.report.Operations.Add(1)
		sleep(ctx, registerPause)
	}
}

func registerKey(k int) string { return fmt.Sprintf("%c/register/%d", 'b'+byte(k*4), k) }

func (g *Registers) access(ctx context.Context, c *clientv3.Client, k int, a access) (answer, error) {
	key, value := registerKey(k), strconv.FormatInt(a.value, 10)
	switch {
	case !a.write:
		resp, err := c.Get(ctx, key)
		if err != nil || len(resp.Kvs) == 0 {
			return answer{}, err
		}
		v, err := strconv.ParseInt(string(resp.Kvs[0].Value), 10, 64)
		return answer{value: v}, err
	case a.cond:
		cmp := clientv3.Compare(clientv3.Value(key), "=", strconv.FormatInt(a.over, 10))
		if a.over == 0 {
			cmp = clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
		}
		resp, err := c.Txn(ctx).If(cmp).Then(clientv3.OpPut(key, value)).Commit()
		if err != nil {
			return answer{}, err
		}
		return answer{done: resp.Succeeded}, nil
	default:
		_, err := c.Put(ctx, key, value)
		return answer{done: true}, err
	}
}

// checkTimeout bounds the search for an order of one register's history.
const checkTimeout = 2 * time.Minute

// Check looks for an order of each register's history.
func (g *Registers) Check(context.Context) {
	for k, ops := range g.ops {
		switch porcupine.CheckOperationsTimeout(registerModel, ops, checkTimeout) {
		case porcupine.Illegal:
			g.report.Violation("%s: %d operations have no order", registerKey(k), len(ops))
		case porcupine.Unknown:
			g.report.Violation("%s: no order of %d operations was found in %v", registerKey(k), len(ops), checkTimeout)
		case porcupine.Ok:
		}
	}
}
