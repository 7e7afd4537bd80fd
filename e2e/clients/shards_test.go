package clients

import (
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"
	"go.etcd.io/etcd/client/v3/leasing"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// What clients of etcd write by themselves may lie on several shards. Where such writes are switched
// off it is refused, and changes nothing.
func TestWritesOverShardsSwitchedOff(t *testing.T) {
	c := harness.NewProcess(t, harness.SplitsFlag, "a,m", harness.NoWritesOverShards).Client()
	defer c.Close()
	leased, end, err := leasing.NewKV(c, "leasing/")
	harness.Must(t, "leasing", err)
	defer end()
	for name, call := range map[string]func() error{
		"leasing":        func() error { _, err := leased.Put(t.Context(), "shared", ""); return err },
		"priority queue": func() error { return recipe.NewPriorityQueue(c, "priority").Enqueue("", 1) },
		"stm": func() error {
			_, err := concurrency.NewSTM(c, func(stm concurrency.STM) error {
				stm.Put("left", stm.Get("right"))
				return nil
			})
			return err
		},
		"guard of a lock": func() error {
			s, err := concurrency.NewSession(c)
			harness.Must(t, "session", err)
			defer s.Close()
			m := concurrency.NewMutex(s, "lock")
			harness.Must(t, "lock", m.Lock(t.Context()))
			_, err = c.Txn(t.Context()).If(m.IsOwner()).Then(clientv3.OpPut("under/lock", "")).Commit()
			return err
		},
		"delete of a prefix": func() error { _, err := c.Delete(t.Context(), "", clientv3.WithPrefix()); return err },
	} {
		if got := status.Convert(call()); got.Code() != codes.Unimplemented || !strings.HasPrefix(got.Message(), harness.OverShards+": ") {
			t.Errorf("%s: %v", name, got)
		}
	}
	r, err := c.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithCountOnly())
	harness.Must(t, "keys", err)
	if r.Count != 0 {
		t.Errorf("refused writes left %d keys", r.Count)
	}
}
