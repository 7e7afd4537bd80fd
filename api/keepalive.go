package api

import (
	"context"
	"errors"
	"io"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// maxKeepAliveWorkers bounds the renewals of one stream that wait at a time. A
// lease that is about to end makes its keepalives wait for the outcome, so the
// bound is how many of those a client may send before its other leases wait too.
const maxKeepAliveWorkers = 512

// renewal is one keepalive, with the header that its answer will carry. The
// header's revision is from before the renewal: a client that learns from a
// keepalive at revision r that its lease lives can rely on that for r.
type renewal struct {
	id     int64
	header *pb.ResponseHeader
}

// keepAlive is one LeaseKeepAlive stream. Its handler takes the requests from the
// reader and hands each to a worker at once, so that a lease is renewed when its
// keepalive has been read, whatever other leases of the stream wait for.
type keepAlive struct {
	service *leaseService
	stream  pb.Lease_LeaseKeepAliveServer
	in      *inbox[pb.LeaseKeepAliveRequest]

	// work hands renewals to idle workers; it has no buffer.
	work chan renewal
	// failed receives the first error of a worker.
	failed  chan error
	workers sync.WaitGroup
	// started counts the workers. Only the handler uses it.
	// Invariant: started <= maxKeepAliveWorkers.
	started int

	// sendMu is held to send: gRPC allows one sender at a time.
	sendMu sync.Mutex
}

func newKeepAlive(s *leaseService, stream pb.Lease_LeaseKeepAliveServer) *keepAlive {
	return &keepAlive{
		service: s,
		stream:  stream,
		work:    make(chan renewal),
		failed:  make(chan error, 1),
	}
}

// run serves the stream until the client ends it, a renewal fails or the stream's
// context ends. It returns when the last worker has.
func (k *keepAlive) run() error {
	ctx, cancel := context.WithCancel(k.stream.Context())
	defer k.workers.Wait()
	defer cancel()

	k.in = receive(k.service.streams, k.stream.Recv)
	defer k.in.close()
	for {
		select {
		case r := <-k.in.requests:
			if err := k.start(ctx, r.GetID()); err != nil {
				return err
			}
		case err := <-k.in.ended:
			return k.finish(err)
		case err := <-k.failed:
			return err
		case <-ctx.Done():
			return endOf(ctx)
		}
	}
}

// start gives a renewal to an idle worker, or to a new one. At the bound it waits
// for a worker.
func (k *keepAlive) start(ctx context.Context, id int64) error {
	r := renewal{id: id, header: k.service.headers.current()}
	select {
	case k.work <- r:
		return nil
	default:
	}
	if k.started < maxKeepAliveWorkers {
		k.started++
		k.workers.Go(func() { k.serve(ctx, r) })
		return nil
	}
	select {
	case k.work <- r:
		return nil
	case err := <-k.failed:
		return err
	case <-ctx.Done():
		return endOf(ctx)
	}
}

// finish answers what was read before the client ended its side.
func (k *keepAlive) finish(err error) error {
	if !errors.Is(err, io.EOF) {
		return toStatus(err)
	}
	close(k.work)
	k.workers.Wait()
	select {
	case err := <-k.failed:
		return err
	default:
		return nil
	}
}

// serve is a worker: it does first, and then what else is handed over.
func (k *keepAlive) serve(ctx context.Context, first renewal) {
	r, ok := first, true
	for ok {
		if err := k.renew(ctx, r); err != nil {
			select {
			case k.failed <- err:
			default:
			}
			return
		}
		select {
		case r, ok = <-k.work:
		case <-ctx.Done():
			return
		}
	}
}

// renew renews one lease and answers.
func (k *keepAlive) renew(ctx context.Context, r renewal) error {
	resp, err := k.service.renew(ctx, r.id)
	if err != nil {
		return err
	}
	resp.Header = r.header

	k.sendMu.Lock()
	defer k.sendMu.Unlock()
	return k.stream.Send(resp)
}
