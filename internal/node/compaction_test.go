package node

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// growing gains one revision a second and remembers its compactions.
type growing struct {
	start     time.Time
	fail      int
	compacted []int64
}

func (s *growing) Revision() int64 { return int64(time.Since(s.start)/time.Second) + 1 }

// Retaining says that every third revision changed nothing.
func (s *growing) Retaining(_ context.Context, n int64) (int64, error) {
	return max(s.Revision()-n*3/2, 0), nil
}

func (s *growing) Compact(_ context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	if s.fail > 0 {
		s.fail--
		return nil, errors.New("no leader")
	}
	s.compacted = append(s.compacted, r.Revision)
	return &pb.CompactionResponse{}, nil
}

func compactions(t *testing.T, c compactionConfig, fail int, d time.Duration) []int64 {
	t.Helper()
	s := &growing{start: time.Now(), fail: fail}
	c.Store = s
	c.Log = slog.New(slog.DiscardHandler)
	if c.Leads == nil {
		c.Leads = func() bool { return true }
	}
	k := startCompaction(c)
	time.Sleep(d)
	k.close()
	return s.compacted
}

func TestCompactions(t *testing.T) {
	for _, tc := range []struct {
		name   string
		config compactionConfig
		fail   int
		run    time.Duration
		want   []int64
	}{
		{"short period", compactionConfig{Period: 10 * time.Minute}, 0, 31 * time.Minute, []int64{61, 661, 1261}},
		{"long period", compactionConfig{Period: 2 * time.Hour}, 0, 4*time.Hour + time.Minute, []int64{361, 3961, 7561}},
		{"hardly a period", compactionConfig{Period: 5 * time.Nanosecond}, 0, 2500 * time.Millisecond, []int64{1, 2, 3}},
		{"failure is tried again", compactionConfig{Period: 10 * time.Minute}, 1, 12 * time.Minute, []int64{121}},
		{"revisions", compactionConfig{Revisions: 100}, 0, 11 * time.Minute, []int64{151, 451}},
		{"another node's work", compactionConfig{Revisions: 100, Leads: func() bool { return false }}, 0, time.Hour, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := compactions(t, tc.config, tc.fail, tc.run); !slices.Equal(got, tc.want) {
					t.Errorf("compacted at %v, want %v", got, tc.want)
				}
			})
		})
	}
}
