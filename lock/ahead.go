package lock

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Who is the second of a queue asks ahead for what it will need when its turn comes: its lease is renewed,
// without a proof. What proves it is that the release applies here, if the leader has proposed that after it was
// asked (raft.Mark). Then the grant costs no message more.

// maxAhead bounds how long before a grant that was asked for. What is older is asked anew: the client is to have
// the whole of its time, and is not to hear of the past.
const maxAhead = 100 * time.Millisecond

// ahead is what was asked ahead.
type ahead struct {
	began  time.Time
	ttl    int64
	proved func(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error)
}

// askAhead asks ahead for a place, and hands what it gets to answer, which has room for it.
func (s *Service) askAhead(ctx context.Context, p Place, answer chan<- ahead) {
	a := ahead{began: time.Now()}
	var err error
	// What fails is asked again when the turn has come.
	if a.ttl, a.proved, err = s.store.LeaseRenewAhead(ctx, p.Lease, []byte(p.Key)); err == nil && a.ttl > 0 {
		answer <- a
	}
}

// grantAhead returns the grant of a place whose turn has come by what was asked ahead, nil if
// that is not there, too old, or not proved.
func (s *Service) grantAhead(ctx context.Context, t *ticket, h *hold, asked <-chan ahead) (*Grant, error) {
	var a ahead
	select {
	case a = <-asked:
	default:
		return nil, nil
	}
	resp, err := a.proved(ctx, h.find())
	if err != nil || resp == nil || time.Since(a.began) > maxAhead {
		return nil, err
	}
	if !h.is(resp) {
		return nil, ErrLost
	}
	h.rev = max(h.rev, resp.Header.Revision)
	return s.grant(t, h, a.began, a.ttl), nil
}
