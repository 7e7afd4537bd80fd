package api

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// noLeaderPatience is for how many election timeouts in a row a stream that
// requires a leader is kept without one. Reopening many streams costs more than
// waiting for an election.
const noLeaderPatience = 3

// streams knows the running streams, and the calls that wait as streams do, to end
// them: all when the server stops, those that require a leader when there has been
// none for long.
type streams struct {
	log *slog.Logger
	// readers counts the goroutines that read from streams, see inbox.
	readers sync.WaitGroup

	mu sync.Mutex
	// running holds what mu protects, with stopped.
	running map[*openCall]struct{}
	// stopped is set by end; from then on no stream is admitted.
	stopped bool
}

// openCall is one running stream or waiting call.
type openCall struct {
	// cancel ends its context with the cause that the client shall see.
	cancel context.CancelCauseFunc
	// needsLeader is set when the client asked to be told of a lost leader.
	needsLeader bool
}

// openStream is a stream with a context that the server can end.
type openStream struct {
	grpc.ServerStream

	ctx context.Context //nolint:containedctx // grpc.ServerStream hands its context out by a method
}

// Context returns the context that the handler works under.
func (s *openStream) Context() context.Context { return s.ctx }

func newStreams(log *slog.Logger) *streams {
	return &streams{log: log, running: make(map[*openCall]struct{})}
}

// open admits a call. It goes on under the context that is returned, and done is
// called when it has ended.
func (s *streams) open(ctx context.Context, needsLeader bool) (_ context.Context, done func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	o := &openCall{cancel: cancel, needsLeader: needsLeader}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		cancel(errStopped)
		return nil, nil, errStopped
	}
	s.running[o] = struct{}{}
	return ctx, func() { s.close(o) }, nil
}

// close forgets a call.
func (s *streams) close(o *openCall) {
	s.mu.Lock()
	delete(s.running, o)
	s.mu.Unlock()
	o.cancel(nil)
}

// end ends every stream and admits no more. The clients see a stopped server and
// go on elsewhere.
func (s *streams) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for o := range s.running {
		o.cancel(errStopped)
	}
}

// endLeaderless ends the streams that require a leader.
func (s *streams) endLeaderless() {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for o := range s.running {
		if o.needsLeader {
			o.cancel(errNoLeader)
			n++
		}
	}
	if n > 0 {
		s.log.LogAttrs(context.Background(), slog.LevelWarn, "ended streams that require a leader", slog.Int("streams", n))
	}
}

// watchLeader ends the streams that require a leader whenever there has been none
// at noLeaderPatience checks in a row. It returns when ctx ends.
func (s *streams) watchLeader(ctx context.Context, cluster Cluster, election time.Duration) {
	ticker := time.NewTicker(election)
	defer ticker.Stop()
	missed := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if cluster.Leader() != 0 {
			missed = 0
			continue
		}
		if missed++; missed >= noLeaderPatience {
			s.endLeaderless()
		}
	}
}

// inbox is the receiving side of a stream, read by a goroutine of its own.
type inbox[Req any] struct {
	// requests hands over what the client sent, in order. It is never closed.
	requests chan *Req
	// ended receives the error that ended the client's side, io.EOF included. It
	// is readable after the last request was taken.
	ended chan error
	done  chan struct{}
}

// receive starts to read a stream by recv. The reader ends when recv fails, which
// it does at the latest when the stream's handler has returned; the streams count
// it until then. The handler calls close before it returns.
func receive[Req any](s *streams, recv func() (*Req, error)) *inbox[Req] {
	in := &inbox[Req]{
		requests: make(chan *Req),
		ended:    make(chan error, 1),
		done:     make(chan struct{}),
	}
	s.readers.Go(func() {
		for {
			r, err := recv()
			if err != nil {
				in.ended <- err
				return
			}
			select {
			case in.requests <- r:
			case <-in.done:
				return
			}
		}
	})
	return in
}

// close lets the reader end although nobody takes its requests any more.
func (in *inbox[Req]) close() { close(in.done) }
