package sim

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// Behind the directory of its shard a key has the letter of whom it is for. A value is what
// it says, then a slash and who wrote it, so that each is written by one transaction.
const (
	ofBank      = "$" // $3 is an account, $r3.17 a receipt
	ofInsertion = "i" // i3.17
	ofFork      = "f" // f12 is the key of group 12
	ofRegister  = "x" // x12 is the register of group 12
)

const (
	// bankAccounts are spread over the shards; each has bankEach at first.
	bankAccounts, bankEach = 8, 100
	// forkTime and registerTime are how long a group of keys is used.
	forkTime, registerTime = 60 * time.Millisecond, 100 * time.Millisecond
)

// transactors are clients whose transactions all concern several shards, and what they have
// seen.
type transactors struct {
	*workload
	bank *bank

	mu sync.Mutex
	// All below is protected by mu. Calls of registers are by group.
	insertions []inserted
	snapshots  []*op
	forks      map[int][]*op
	registers  map[int][]porcupine.Operation
}

func newTransactors(w *workload) *transactors {
	tr := &transactors{
		workload: w, bank: &bank{each: bankEach, receipts: make(map[string]moved)},
		forks: make(map[int][]*op), registers: make(map[int][]porcupine.Operation),
	}
	for i := range bankAccounts {
		tr.bank.accounts = append(tr.bank.accounts, strconv.Itoa(i))
	}
	return tr
}

// account returns the key of an account.
func (tr *transactors) account(i int) string {
	return tr.directories[i%len(tr.directories)] + ofBank + strconv.Itoa(i)
}

func valued(key, value, by string) *pb.RequestOp {
	return wrapPut(&pb.PutRequest{Key: []byte(key), Value: []byte(value + "/" + by)})
}

func get(key string) *pb.RequestOp { return wrapRange(&pb.RangeRequest{Key: []byte(key)}) }

// said returns what a value says.
func said(kv *mvccpb.KeyValue) string {
	s, _, _ := strings.Cut(string(kv.GetValue()), "/")
	return s
}

// begin opens the accounts and starts the clients.
func (tr *transactors) begin(tb testing.TB) {
	tb.Helper()
	tr.c.wg.Go(func() { tr.collector.run(tr.c.ctx.Done()) })
	opening := &pb.TxnRequest{}
	for i := range bankAccounts {
		opening.Success = append(opening.Success, valued(tr.account(i), strconv.Itoa(bankEach), "opening"))
	}
	if o := tr.do(tr.c.node(1), opening); o.outcome != answered {
		tb.Fatal(o)
	}
	for i, client := range []func(rnd *rand.Rand, p *process, id string){
		tr.transfer, tr.transfer, tr.transfer, tr.insert, tr.insert, tr.look, tr.look, tr.fork, tr.fork, tr.fork,
		tr.register, tr.register, tr.register, tr.register,
	} {
		tr.wg.Go(func() {
			rnd := rand.New(rand.NewPCG(tr.c.options.seed, uint64(500+i)))
			for n := 0; !tr.stopped(); n++ {
				if p := tr.c.any(rnd); p != nil {
					client(rnd, p, fmt.Sprintf("%d.%d", i, n))
				}
				time.Sleep(time.Duration(rnd.IntN(20000)) * time.Microsecond)
			}
		})
	}
	tr.wg.Go(tr.watchClient)
}

// transfer moves an amount between accounts on two shards, if neither has changed since
// it was read, and leaves a receipt on a third.
func (tr *transactors) transfer(rnd *rand.Rand, p *process, id string) {
	i := rnd.IntN(bankAccounts)
	j := (i + 1 + rnd.IntN(len(tr.directories)-1)) % bankAccounts
	read := tr.do(p, &pb.TxnRequest{Success: []*pb.RequestOp{get(tr.account(i)), get(tr.account(j))}})
	if read.outcome != answered {
		return
	}
	var found [2]*mvccpb.KeyValue
	var balances [2]int
	resp, _ := read.resp.(*pb.TxnResponse)
	for k := range found {
		kvs := resp.Responses[k].GetResponseRange().Kvs
		if len(kvs) == 0 {
			tr.tb.Errorf("an account is gone: %v", read)
			return
		}
		found[k] = kvs[0]
		var err error
		if balances[k], err = strconv.Atoi(said(kvs[0])); err != nil {
			tr.tb.Error(err)
			return
		}
	}
	amount := 1 + rnd.IntN(9)
	tr.mu.Lock()
	tr.bank.receipts["r"+id] = moved{strconv.Itoa(i), strconv.Itoa(j), amount}
	tr.mu.Unlock()
	third := tr.directories[(i+j+rnd.IntN(len(tr.directories)))%len(tr.directories)]
	tr.do(p, &pb.TxnRequest{
		Compare: []*pb.Compare{unchanged(found[0]), unchanged(found[1])},
		Success: []*pb.RequestOp{
			valued(tr.account(i), strconv.Itoa(balances[0]-amount), id), valued(third+ofBank+"r"+id, "", id),
			valued(tr.account(j), strconv.Itoa(balances[1]+amount), id),
		},
	})
}

func unchanged(kv *mvccpb.KeyValue) *pb.Compare {
	return &pb.Compare{Key: kv.Key, Target: pb.Compare_VALUE, TargetUnion: &pb.Compare_Value{Value: kv.Value}}
}

// insert puts keys of a transaction's own, on one to all shards.
func (tr *transactors) insert(rnd *rand.Rand, p *process, id string) {
	req := &pb.TxnRequest{}
	for _, i := range rnd.Perm(len(tr.directories))[:1+rnd.IntN(len(tr.directories))] {
		req.Success = append(req.Success, valued(tr.directories[i]+ofInsertion+id, "", id))
	}
	o := tr.do(p, req)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.insertions = append(tr.insertions, inserted{attempted{id, o.begin, o.end, o.outcome}, len(req.Success)})
}

// look reads everything.
func (tr *transactors) look(rnd *rand.Rand, p *process, _ string) {
	o := tr.do(p, &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("e"), Serializable: rnd.IntN(3) == 0})
	if o.outcome != answered {
		return
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.snapshots = append(tr.snapshots, o)
}

// fork writes one key of a group, or reads them all.
func (tr *transactors) fork(rnd *rand.Rand, p *process, id string) {
	group := int(time.Since(tr.began) / forkTime)
	key := func(i int) string { return tr.directories[i] + ofFork + strconv.Itoa(group) }
	if rnd.IntN(2) == 0 {
		// Where it is there it stays as it is. Beside it a key of the client's own is put on another shard.
		i := rnd.IntN(len(tr.directories))
		tr.do(p, &pb.TxnRequest{
			Compare: []*pb.Compare{{Key: []byte(key(i)), Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{}}},
			Success: []*pb.RequestOp{valued(key(i), "", id), valued(tr.directories[(i+1)%len(tr.directories)]+ofFork+"own"+id, "", id)},
		})
		return
	}
	req := &pb.TxnRequest{}
	for i := range tr.directories {
		req.Success = append(req.Success, get(key(i)))
	}
	if o := tr.do(p, req); o.outcome == answered {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		tr.forks[group] = append(tr.forks[group], o)
	}
}

// register reads and sets registers of a group.
func (tr *transactors) register(rnd *rand.Rand, p *process, id string) {
	group := int(time.Since(tr.began) / registerTime)
	order := rnd.Perm(len(tr.directories))
	if rnd.IntN(3) == 0 {
		order = order[:1] // on one shard, in the way of the others
	}
	key := func(i int) string { return tr.directories[order[i]] + ofRegister + strconv.Itoa(group) }
	in, req := registersTxn{writes: make(map[string]string)}, &pb.TxnRequest{}
	reads := rnd.IntN(len(order) + 1)
	for i := range order {
		if i < reads {
			in.reads = append(in.reads, key(i))
			req.Success = append(req.Success, get(key(i)))
		} else if i == reads || rnd.IntN(2) == 0 {
			in.writes[key(i)] = id
			req.Success = append(req.Success, wrapPut(&pb.PutRequest{Key: []byte(key(i)), Value: []byte(id)}))
		}
	}
	if rnd.IntN(4) == 0 {
		in.guard = key(rnd.IntN(len(order)))
		req.Compare = []*pb.Compare{{Key: []byte(in.guard), Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{}}}
	}
	o := tr.do(p, req)
	out := registersSeen{unknown: o.outcome == unknown, values: make(map[string]string)}
	end := o.end
	switch resp, _ := o.resp.(*pb.TxnResponse); {
	case o.outcome == refused, out.unknown && len(in.writes) == 0:
		return
	case out.unknown:
		end = 1 << 40
	case resp.Succeeded:
		out.succeeded = true
		for i, k := range in.reads {
			for _, kv := range resp.Responses[i].GetResponseRange().Kvs {
				out.values[k] = string(kv.Value)
			}
		}
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	made := len(tr.registers[group])
	tr.registers[group] = append(tr.registers[group], porcupine.Operation{ClientId: made, Input: in, Output: out, Call: o.begin, Return: end})
}

// check holds what the clients saw against what each checker knows.
func (tr *transactors) check(tb testing.TB) {
	tb.Helper()
	var of []snapshot
	var seen []map[string]int
	for _, o := range tr.snapshots {
		s := snapshot{begin: o.begin, end: o.end, stale: o.serializable(), values: make(map[string]string)}
		accounts, insertions := snapshot{s.begin, s.end, s.stale, make(map[string]string)}, make(map[string]int)
		resp, _ := o.resp.(*pb.RangeResponse)
		for _, kv := range resp.Kvs {
			_, key, _ := strings.Cut(string(kv.Key), "/")
			if id, ok := strings.CutPrefix(key, ofInsertion); ok {
				insertions[id]++
			} else if id, ok := strings.CutPrefix(key, ofBank); ok {
				accounts.values[id] = said(kv)
			}
		}
		of, seen = append(of, s), append(seen, insertions)
		if err := tr.bank.check(accounts); err != nil {
			tb.Errorf("bank: %v in %d-%d", err, s.begin, s.end)
		}
	}
	if err := checkInsertions(tr.insertions, of, seen); err != nil {
		tb.Errorf("insertions: %v", err)
	}
	all := make([]map[string]bool, 0, len(seen))
	for _, s := range seen {
		shown := make(map[string]bool)
		for id := range s {
			shown[id] = true
		}
		all = append(all, shown)
	}
	if err := checkForks(all); err != nil {
		tb.Error("a long fork of insertions")
	}
	for group, reads := range tr.forks {
		var shown []map[string]bool
		for _, o := range reads {
			found := make(map[string]bool)
			resp, _ := o.resp.(*pb.TxnResponse)
			for _, r := range resp.Responses {
				for _, kv := range r.GetResponseRange().Kvs {
					found[string(kv.Key)] = true
				}
			}
			shown = append(shown, found)
		}
		if err := checkForks(shown); err != nil {
			tb.Errorf("group %d: long fork: %v", group, err)
		}
	}
	undecided := 0
	for group, ops := range tr.registers {
		switch verdict, _ := porcupine.CheckOperationsVerbose(registers(), ops, 10*time.Second); verdict {
		case porcupine.Illegal:
			tb.Errorf("registers of group %d have no serial order: %+v", group, ops)
		case porcupine.Unknown:
			undecided++
		case porcupine.Ok:
		}
	}
	if groups := len(tr.registers); undecided > groups/10 {
		tb.Errorf("%d of %d groups of registers could not be decided", undecided, groups)
	}
	tb.Logf("%d transfers tried, %d insertions, %d snapshots, %d groups of keys for long forks, %d of registers, %d undecided",
		len(tr.bank.receipts), len(tr.insertions), len(tr.snapshots), len(tr.forks), len(tr.registers), undecided)
}

// unheld checks that transactions let go of all that they hold within two seconds, when nothing is
// broken any more and nobody makes calls.
func (c *cluster) unheld(tb testing.TB) {
	tb.Helper()
	time.Sleep(2 * time.Second)
	for _, p := range c.alive() {
		for id, d := range p.shards {
			if met := d.Store().Met(nil, []keys.Span{{}}); len(met) > 0 {
				tb.Errorf("node %d: shard %d has %d holds left", p.node.id, id, len(met))
			}
		}
	}
}

// runTransactors lets transactors use a cluster of four shards that is being broken.
func runTransactors(t *testing.T, o options, f faults, ch chaos, length time.Duration) {
	t.Helper()
	t.Logf("seed %d", o.seed)
	var tr *transactors
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, o)
		defer c.close()
		tr = newTransactors(newWorkload(t, c))
		tr.begin(t)
		c.net.setFaults(f)
		ch.wreak(tr.workload)
		tr.wg.Go(func() { every(c.rnd, 2*time.Second, tr.stop, func() { tr.compact(c.rnd) }) })
		time.Sleep(length)
		tr.verify(tr.settle())
	})
	tr.check(t)
}

// Bank transfers, insertions whose causal order must show, long forks and registers, over
// four shards, among all faults.
func TestTransactions(t *testing.T) {
	first := seed(t)
	length := unlessShort(5*time.Second, time.Second)
	for round := range uint64(sized(1, 50)) {
		runTransactors(t, options{seed: first + round, splits: fourShards, snapshotEntries: 400},
			faults{lose: 5, repeat: 10, reorder: 10, late: 20 * time.Millisecond, loseCall: 5, loseAnswer: 5, slow: 60},
			chaos{transfers: 40 * time.Millisecond, campaigns: 200 * time.Millisecond, cuts: 500 * time.Millisecond, deaths: 3 * time.Second}, length)
	}
}

// The same among replicas that apply at different speeds, and goroutines that stand still
// between two steps of a rule; see TestRandomStalls.
func TestTransactionsStalls(t *testing.T) {
	first := seed(t)
	length := unlessShort(10*time.Second, 3*time.Second)
	for round := range uint64(sized(1, 50)) {
		runTransactors(t, options{seed: first + round, splits: fourShards, snapshotEntries: never},
			faults{lose: 2, repeat: 5, reorder: 5, late: 20 * time.Millisecond, loseCall: 2, loseAnswer: 2, slow: 60},
			chaos{
				transfers: 200 * time.Millisecond, campaigns: time.Second, cuts: 2 * time.Second, deaths: 5 * time.Second,
				speeds: 300 * time.Millisecond, stalls: 5,
			}, length)
	}
}
