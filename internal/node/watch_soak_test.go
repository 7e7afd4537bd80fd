//go:build soak

package node

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/mvcc"
)

// TestWatchesOverAllKeys tells how long it takes from the answer to a put until 20 watches
// over all keys, spread over three nodes, have its event.
func TestWatchesOverAllKeys(t *testing.T) {
	for _, shards := range []int{1, 4, 32} {
		t.Run(fmt.Sprint(shards, " shards"), func(t *testing.T) { watchAllKeys(t, shards) })
	}
}

// split returns splits that make so many shards, and the first letters of their keys.
func split(shards int) (splits string, letters []string) {
	for i := range shards {
		letters = append(letters, fmt.Sprintf("%c%c", 'a'+i/8, 'a'+i%8))
	}
	return strings.Join(letters[1:], ","), letters
}

func watchAllKeys(t *testing.T, shards int) {
	t.Helper()
	splits, letters := split(shards)
	c := newCluster(t, 3, "--initial-splits", splits)
	c.start(c.machines...)
	time.Sleep(2 * time.Second) // elections
	const watches, puts = 20, 500
	var answered [1 << 12]atomic.Int64 // when the put of a number was answered
	var mu sync.Mutex
	var took []time.Duration // protected by mu
	stop := make(chan struct{})
	var watching sync.WaitGroup
	for i := range watches {
		g := c.machines[i%3].node.router.NewWatchGroup()
		g.Add(1, mvcc.WatchOptions{Key: []byte{0}, End: []byte{0}})
		watching.Go(func() {
			defer g.Close()
			for {
				batch, ok, err := g.Poll()
				check(t, err)
				for _, e := range batch.Events {
					var n int
					if _, err := fmt.Sscan(string(e.Kv.Value), &n); err != nil {
						t.Error(err)
					}
					// The event may be there before the answer.
					at := answered[n%len(answered)].Load()
					late := max(time.Duration(time.Now().UnixNano()-at), 0)
					if at == 0 {
						late = 0
					}
					mu.Lock()
					took = append(took, late)
					mu.Unlock()
				}
				if ok {
					continue
				}
				select {
				case <-g.Ready():
				case <-stop:
					return
				}
			}
		})
	}
	n := 0
	for n < puts {
		answered[n%len(answered)].Store(0)
		key := letters[n%len(letters)] + "x"
		_, err := c.machines[n%3].node.router.Put(t.Context(), &pb.PutRequest{Key: []byte(key), Value: fmt.Append(nil, n)})
		check(t, err)
		answered[n%len(answered)].Store(time.Now().UnixNano())
		n++
		time.Sleep(5 * time.Millisecond)
	}
	until(t, "the events", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(took) == n*watches
	})
	close(stop)
	watching.Wait()
	slices.Sort(took)
	t.Logf("of the events half took up to %v, nine of ten up to %v, and all up to %v", took[len(took)/2], took[len(took)*9/10], took[len(took)-1])
}
