package shard

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/commit"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/mvcc"
)

// A home that holds nothing for a transaction commits it once, if nobody holds what it puts and it was
// not aborted. It forgets with it what is over, as with a Prepare.
func TestDecisionWithoutAPrepare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDataCluster(t, 1)
		defer c.close()
		nd, _ := c.leader(0)
		d := nd.data
		b := d.db.NewBatch()
		defer func() { _ = b.Close() }()
		run, ok := d.Apply(b).(*dataRun)
		if !ok {
			t.Fatal("another run")
		}
		run.setShape(Shape{Owned: keys.NewSet(keys.Span{}), Ordered: true})
		number := int64(100)
		checks := appendChecks([]byte{}, nil, nil)
		step := func(kind Kind, payload []byte) (any, error) {
			t.Helper()
			number++
			result, rejected, failed := run.Command(raft.Command{Kind: raft.Kind(kind), Number: number, Compacted: -1, Payload: payload}, true)
			if failed != nil {
				t.Fatal(failed)
			}
			return result, rejected
		}
		id := func(counter uint64) commit.ID { return commit.ID{Node: 1, Boot: 1, Counter: counter} }
		decide := func(counter, open uint64, key string) error {
			t.Helper()
			op := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key)}}}
			decision := commit.Decision{ID: id(counter), Open: open, Shares: []commit.Share{
				{ShardID: d.replica.ShardID(), Ops: commit.EncodeOps([]mvcc.Placed{{Op: op}})}, {ShardID: 77},
			}}
			out, err := step(kindDecide, slices.Concat(checks, decision.Append(nil)))
			if committed, known := d.transactions.Committed(id(counter)); err == nil &&
				(out != commit.Outcome{Rev: number} || !known || committed.Rev != number || run.w.Rev() != number) {
				t.Errorf("attempt %d: %v, %+v at %d", counter, out, committed, number)
			}
			return err
		}
		if err := decide(1, 1, "a"); err != nil {
			t.Fatal(err)
		}
		if err := decide(1, 1, "a"); !errors.Is(err, ErrAborted) {
			t.Errorf("decided again: %v", err)
		}
		if _, err := step(kindAbort, commit.AppendIDs(nil, id(2))); err != nil {
			t.Fatal(err)
		}
		if err := decide(2, 1, "b"); !errors.Is(err, ErrAborted) {
			t.Errorf("decided after the abort: %v", err)
		}
		p := commit.Prepare{ID: commit.ID{Node: 2, Boot: 1, Counter: 1}, Open: 1, Home: 77, Reads: keys.NewSet(keys.Point([]byte("c")))}
		if _, err := step(kindPrepareUnnumbered, slices.Concat(checks, p.Append(nil))); err != nil {
			t.Fatal(err)
		}
		if err := decide(3, 3, "c"); !errors.Is(err, ErrYounger) {
			t.Errorf("decided on a key that another holds: %v", err)
		}
		if _, known := d.transactions.Outcome(id(2)); !known {
			t.Error("what was turned away has marked attempts as over")
		}
		if err := decide(4, 4, "d"); err != nil {
			t.Fatal(err)
		}
		if _, known := d.transactions.Outcome(id(2)); known || !d.transactions.Refused(id(2)) {
			t.Error("the outcome of what is over is kept")
		}
	})
}
