package e2e

import (
	"os"
	"strconv"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// historySeed returns the seed of a round: a new one, or the one that a replay
// asks for.
func historySeed(t *testing.T, round int) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("LATCHKEY_HISTORY_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("round %d: replay with LATCHKEY_HISTORY_SEED=%d go test ./e2e -run '^%s$'", round, seed, t.Name())
	return seed
}

func rangeAll() *pb.RangeRequest { return &pb.RangeRequest{} }
