package sim

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/raft"
)

// Many clients make transactions over the same four keys, on as many shards, some through a node that is
// slow in all that it asks of others. All end, none waits for much longer than those
// before it take, nothing is half done, and nothing is left behind.
func TestStormOverTheSameKeys(t *testing.T) {
	const each, slow = 4, 5 * time.Millisecond
	clients := unlessShort(50, 20)
	// A third are of the slow node, and hold their keys for some four ways.
	longest := time.Duration(clients*3) * slow
	coordinated(t, func(c *cluster) {
		t := c.tb
		c.script(func(k call, _ int) interference {
			if k.from == 1 && k.shard != 1 {
				return interference{before: slow}
			}
			return interference{}
		})
		names := []string{"a/x", "b/x", "c/x", "d/x"}
		synctest.Wait()
		before := runtime.NumGoroutine()
		var mu sync.Mutex
		var worst time.Duration
		began := time.Now()
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				p := c.node(uint64(1 + i%nodes))
				for n := range each {
					req := &pb.TxnRequest{}
					for _, name := range names {
						req.Success = append(req.Success, wrapPut(&pb.PutRequest{Key: []byte(name), Value: fmt.Append(nil, i, n)}))
					}
					asked := time.Now()
					if _, err := p.router.Txn(t.Context(), req); err != nil {
						t.Errorf("client %d of node %d, after %v: %v", i, p.node.id, time.Since(asked), err)
					}
					mu.Lock()
					worst = max(worst, time.Since(asked))
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		t.Logf("%d transactions in %v, the longest took %v", clients*each, time.Since(began), worst)
		if worst > longest {
			t.Errorf("a transaction took %v, expected at most %v", worst, longest)
		}
		c.unheld(t)
		synctest.Wait()
		if after := runtime.NumGoroutine(); after > before+clients/2 {
			t.Errorf("%d goroutines, %d before", after, before)
		}
		found, _ := c.node(1).read(t, "a/", "e")
		for _, name := range names {
			if kv := found[name]; kv.GetVersion() != int64(clients*each) || kv.ModRevision != found["a/x"].GetModRevision() {
				t.Errorf("%s is %v, expected version %d and a revision for all", name, kv, clients*each)
			}
		}
	})
}

// The line of commands that wait for held keys has a bound of its own. Those beyond are turned away,
// and commands for other keys of the shard don't notice.
func TestLineOfWaitersIsBounded(t *testing.T) {
	coordinated(t, func(c *cluster) {
		t := c.tb
		const bound, beyond = 5000, 100
		p := c.node(3)
		a := c.attempt(1)
		a.prepared(shardB)
		puts := make([]*later[*pb.PutResponse], bound+beyond)
		for i := range puts {
			puts[i] = p.putting(t.Context(), "b/x", "1")
		}
		time.Sleep(10 * time.Millisecond)
		began := time.Now()
		p.put(t, "b/y", "1")
		if took := time.Since(began); took > 50*time.Millisecond {
			t.Errorf("a put of another key took %v", took)
		}
		a.abort(shardB)
		many := 0
		for _, put := range puts {
			switch _, err := put.wait(); {
			case errors.Is(err, raft.ErrTooManyRequests):
				many++
			case err != nil:
				t.Fatal(err)
			}
		}
		if found, _ := p.read(t, "b/x", ""); many != beyond || found["b/x"].Version != bound {
			t.Errorf("%d of %d puts were turned away, and b/x has version %d", many, len(puts), found["b/x"].Version)
		}
	})
}
