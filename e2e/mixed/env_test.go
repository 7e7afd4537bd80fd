package mixed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/faults"
	"github.com/latchkey-db/latchkey/e2e/harness"
)

// env is a cluster with some locks, and what its clients were told.
type env struct {
	*faults.Cluster
	gear *faults.Gear
	// links are what clients reach the nodes by, nodes their addresses.
	links   []*harness.Link
	nodes   []string
	locks   []string
	history history
	// running counts what parties have running beside.
	running sync.WaitGroup
	named   atomic.Int64
}

// newEnv starts a cluster with what some kinds of faults need.
func newEnv(t *testing.T, nodes, shards int, kinds []string) *env {
	t.Helper()
	bin, err := harness.Server()
	must(t, err)
	o := faults.Options{Binary: bin, Nodes: nodes, Later: 1, Dir: t.TempDir()}
	if splits := faults.Splits(shards); splits != "" {
		o.Args = []string{"--initial-splits", splits}
	}
	e := &env{}
	e.gear, err = faults.NewGear(kinds, nodes+o.Later, o.Dir)
	must(t, err)
	t.Cleanup(func() { must(t, e.gear.Close()) })
	o.Network, o.Disks = e.gear.Network, e.gear.Disks
	e.Cluster, err = faults.New(o)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range e.Nodes {
				t.Logf("log of %s:\n%s", n.Name, n.Log())
			}
		}
		must(t, e.Close())
	})
	start, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, e.Start(start))
	for _, n := range e.Nodes {
		l := harness.NewLink(t, n.Client)
		e.links, e.nodes = append(e.links, l), append(e.nodes, l.Addr)
	}
	for i := range 4 { // one for each of four shards
		e.locks = append(e.locks, string(rune('a'+i*26/4))+"/mixed")
	}
	return e
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// unique returns a name that nobody else has.
func (e *env) unique(of string) string { return fmt.Sprintf("%s-%d", of, e.named.Add(1)) }

// cutLinks ends what connections clients have to one node after the other, and refuses new ones for
// a moment.
func (e *env) cutLinks(ctx context.Context, rnd *rand.Rand) {
	for pause(ctx, time.Duration(3+rnd.IntN(4))*time.Second) == nil {
		l := e.links[rnd.IntN(len(e.links))]
		l.SetCut(true)
		_ = pause(ctx, time.Duration(rnd.IntN(700))*time.Millisecond) // it is mended in any case
		l.SetCut(false)
	}
}

// watch looks at a queue, now by its keys, now by the API, until ctx ends.
func (e *env) watch(ctx context.Context, lock string, clients []*clientv3.Client) {
	for i := 0; pause(ctx, 40*time.Millisecond) == nil; i++ {
		node := i % len(clients)
		places := e.placesByKeys
		if i/len(clients)%3 == 0 {
			places = e.placesByAPI
		}
		try, cancel := context.WithTimeout(ctx, patience)
		l := look{lock: lock, sent: time.Now()}
		var err error
		l.places, err = places(try, clients[node], lock)
		l.got = time.Now()
		cancel()
		if err == nil {
			e.history.saw(l)
		}
	}
}

func (e *env) placesByKeys(ctx context.Context, c *clientv3.Client, lock string) (places []int64, err error) {
	resp, err := c.Get(ctx, lock+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return nil, err
	}
	for _, kv := range resp.Kvs {
		places = append(places, kv.CreateRevision)
	}
	return places, nil
}

// placesByAPI asks the node of a client.
func (e *env) placesByAPI(ctx context.Context, c *clientv3.Client, lock string) (places []int64, err error) {
	type place struct {
		Token int64 `json:"fencing_token"`
	}
	var answer struct{ Holders, Waiters []place }
	if err := getJSON(ctx, c.Endpoints()[0], "/"+lock, &answer); err != nil {
		return nil, err
	}
	for _, p := range slices.Concat(answer.Holders, answer.Waiters) {
		places = append(places, p.Token)
	}
	return places, nil
}

// getJSON asks a node for something below /api/v1/locks.
func getJSON(ctx context.Context, node, path string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+node+"/api/v1/locks"+path, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	err = json.NewDecoder(resp.Body).Decode(answer)
	if resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return errors.Join(err, resp.Body.Close())
}

// remains returns what there is of places, leases and locks.
func (e *env) remains(ctx context.Context, c *clientv3.Client) error {
	var places []int64
	for _, lock := range e.locks {
		there, err := e.placesByKeys(ctx, c, lock)
		if err != nil {
			return err
		}
		places = append(places, there...)
	}
	leases, err := c.Leases(ctx)
	if err != nil {
		return err
	}
	var answer struct {
		Locks []struct {
			Key string `json:"lock_key"`
		}
	}
	if err := getJSON(ctx, c.Endpoints()[0], "", &answer); err != nil {
		return err
	}
	if len(places)+len(leases.Leases)+len(answer.Locks) > 0 {
		return fmt.Errorf("there are places %v, leases %v and locks %v", places, leases.Leases, answer.Locks)
	}
	return nil
}
