package shard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// tally counts what an observer hears.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (o *tally) count(name string, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.counts[name] += n
}

func (o *tally) of(name string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.counts[name]
}

func (o *tally) LogSaved(bytes int, _ time.Duration) {
	o.count("saved", 1)
	o.count("bytes", bytes)
}

func (o *tally) SnapshotLoading(begun bool) {
	if begun {
		o.count("loads begun", 1)
	} else {
		o.count("loads ended", 1)
	}
}

func (o *tally) StateCommitted(time.Duration) { o.count("committed", 1) }
func (o *tally) ProposalFailed()              { o.count("failed", 1) }
func (o *tally) LeaseGranted(ttl int64)       { o.count(fmt.Sprintf("granted for %d", ttl), 1) }
func (o *tally) LeaseRenewed()                { o.count("renewed", 1) }
func (o *tally) Swept(took, longest time.Duration) {
	if took >= longest {
		o.count("swept", 1)
	}
}

func (o *tally) Applied(operation string, rejected bool, _ time.Duration) {
	o.count(fmt.Sprintf("%s rejected=%t", operation, rejected), 1)
}

func (o *tally) Confirmed(_ time.Duration, err error) {
	o.count(fmt.Sprintf("confirmed failed=%t", err != nil), 1)
}

func (o *tally) LeasesEnded(all, expired int) {
	o.count("ended", all)
	o.count("expired", expired)
}

// observed starts a data shard of one node whose deeds are counted.
func observed(t *testing.T) (*cluster, *testNode, *tally) {
	t.Helper()
	c := newDataCluster(t, 1)
	o := &tally{counts: make(map[string]int)}
	c.observer = o
	nd := c.nodes[0]
	c.stop(nd)
	c.start(nd)
	c.leader(0)
	return c, nd, o
}

func TestObserverHearsOfEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, nd, o := observed(t)
		defer c.close()
		write := func(kind Kind, r proto.Message) error {
			_, err := nd.data.Write(t.Context(), nil, kind, r)
			return err
		}
		for _, step := range []struct {
			name string
			do   func() error
			want map[string]int
		}{
			{"put", func() error { return write(KindPut, &pb.PutRequest{Key: []byte("k")}) }, map[string]int{
				"saved": 1, "bytes": 10, "committed": 1, "Put rejected=false": 1,
			}},
			{"guarded put", func() error {
				_, err := nd.data.Write(t.Context(), &Guard{}, KindPut, &pb.PutRequest{Key: []byte("k")})
				return err
			}, map[string]int{"Put rejected=false": 1}},
			{"delete", func() error { return write(KindDeleteRange, &pb.DeleteRangeRequest{Key: []byte("k")}) }, map[string]int{
				"DeleteRange rejected=false": 1,
			}},
			{"rejected transaction", func() error {
				err := write(KindTxn, &pb.TxnRequest{Success: []*pb.RequestOp{{}}})
				if err == nil {
					return errors.New("an empty operation was taken")
				}
				return nil
			}, map[string]int{"Txn rejected=true": 1}},
			{"grant", func() error { return write(KindLeaseGrant, &pb.LeaseGrantRequest{ID: 1, TTL: 5}) }, map[string]int{
				"granted for 5": 1, "LeaseGrant rejected=false": 1,
			}},
			{"renewal", func() error { _, err := nd.data.Renew(t.Context(), 1); return err }, map[string]int{
				"renewed": 1, "confirmed failed=false": 1,
			}},
			{"renewal of no lease", func() error { _, err := nd.data.Renew(t.Context(), 2); return err }, map[string]int{
				"renewed": 0, "confirmed failed=false": 1,
			}},
			{"revocation", func() error { return write(KindLeaseRevoke, &pb.LeaseRevokeRequest{ID: 1}) }, map[string]int{
				"ended": 1, "expired": 0, "LeaseRevoke rejected=false": 1,
			}},
			{"end", func() error {
				nd.grant(t, 3, 2)
				nd.put(t, "l", 3)
				nd.gone(t, "l")
				return nil
			}, map[string]int{"ended": 1, "expired": 1, "LeaseRevoke rejected=false": 1}},
			{"silence", func() error {
				nd.grant(t, 4, 60)
				time.Sleep(40 * time.Second)
				return nil
			}, map[string]int{"ended": 0, "LeaseCheckpoint rejected=false": 1}},
			{"compaction", func() error {
				if err := write(KindCompact, &pb.CompactionRequest{Revision: 3}); err != nil {
					return err
				}
				return nd.data.AwaitSwept(t.Context(), 3)
			}, map[string]int{"Compaction rejected=false": 1, "swept": 1}},
		} {
			before := make(map[string]int)
			for name := range step.want {
				before[name] = o.of(name)
			}
			if err := step.do(); err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
			synctest.Wait()
			for name, want := range step.want {
				got := o.of(name) - before[name]
				// One step of Raft may take several writes.
				if got != want && (want == 0 || got < want || name != "saved" && name != "bytes" && name != "committed") {
					t.Errorf("%s: %q counted %d times, want %d", step.name, name, got, want)
				}
			}
		}
	})
}

// A command counts as pending until its outcome is known, and as failed when its
// caller does not wait for that.
func TestPendingAndFailed(t *testing.T) {
	c, nd, o := observed(t)
	defer c.close()
	ctx, cancel := context.WithCancel(t.Context())
	outcome := make(chan error, 1)
	nd.r.Between(func() {
		go func() {
			_, err := nd.data.Write(ctx, nil, KindPut, &pb.PutRequest{Key: []byte("k")})
			outcome <- err
		}()
		await(t, func() bool { return nd.r.Pending() == 1 })
		cancel()
		if err := <-outcome; !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled write: %v", err)
		}
	})
	await(t, func() bool { return nd.r.Pending() == 0 })
	if n := o.of("failed"); n != 1 {
		t.Errorf("%d failures counted", n)
	}
}
