package node

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/api"
	"github.com/latchkey-db/latchkey/mvcc"
	"github.com/latchkey-db/latchkey/router"
)

// services completes the router to what the API asks of the node.
type services struct {
	*router.Router
	node *Node
}

var (
	_ api.Watches     = services{}
	_ api.Maintenance = services{}
	_ api.Store       = services{}
	_ api.Leases      = (*router.Router)(nil)
)

// NewWatchGroup returns the watchers of one client stream.
func (s services) NewWatchGroup() api.WatchGroup { return s.Router.NewWatchGroup() }

// Range reads keys, unless what this node holds may be wrong.
func (s services) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if s.node.peers.suspect() {
		return nil, mvcc.ErrCorrupt
	}
	return s.Router.Range(ctx, r)
}

// RangeInShard reads keys of one shard, unless what this node holds may be wrong.
func (s services) RangeInShard(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if s.node.peers.suspect() {
		return nil, mvcc.ErrCorrupt
	}
	return s.Router.RangeInShard(ctx, r)
}

// LeaseRenewAhead renews a lease, and reads keys later, unless what this node holds may be wrong.
func (s services) LeaseRenewAhead(ctx context.Context, id int64, key []byte) (
	ttl int64, proved func(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error), err error,
) {
	ttl, passed, err := s.Router.LeaseRenewAhead(ctx, id, key)
	return ttl, func(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
		if s.node.peers.suspect() {
			return nil, mvcc.ErrCorrupt
		}
		return passed(ctx, r)
	}, err
}

// Peek reads what this node knows, unless that may be wrong.
func (s services) Peek(ctx context.Context, r *pb.RangeRequest, least int64) (*pb.RangeResponse, error) {
	if s.node.peers.suspect() {
		return nil, mvcc.ErrCorrupt
	}
	return s.Router.Peek(ctx, r, least)
}

// RangeStream is Range in chunks.
func (s services) RangeStream(ctx context.Context, r *pb.RangeRequest, maxBytes int, emit func(*pb.RangeResponse) error) error {
	if s.node.peers.suspect() {
		return mvcc.ErrCorrupt
	}
	return s.Router.RangeStream(ctx, r, maxBytes, emit)
}

// Txn runs a transaction, unless what this node holds may be wrong.
func (s services) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if s.node.peers.suspect() {
		return nil, mvcc.ErrCorrupt
	}
	return s.Router.Txn(ctx, r)
}

// WriteSnapshot writes a backup, unless what this node holds may be wrong.
func (s services) WriteSnapshot(ctx context.Context, w io.Writer) error {
	if s.node.peers.suspect() {
		return mvcc.ErrCorrupt
	}
	return s.Router.WriteSnapshot(ctx, w)
}

// ReadOwn reads what this node holds, unless that may be wrong.
func (s services) ReadOwn(ctx context.Context) error {
	if s.node.peers.suspect() {
		return mvcc.ErrCorrupt
	}
	return s.Router.ReadOwn(ctx)
}

// Status tells the node's sizes and its places in the data shards' logs, added up: every
// node has them all, so that the sums of two nodes can be compared, and one that lags in any
// log has the lower one.
func (s services) Status() api.NodeStatus {
	var status api.NodeStatus
	status.DBSize, status.DBSizeInUse = s.Sizes()
	for _, d := range s.node.shards {
		// The applied index first, which the committed one is then not below.
		status.RaftAppliedIndex += d.Replica().Applied()
		status.RaftIndex += d.Replica().Committed()
	}
	return status
}

// MoveLeader has a node lead the system shard, and the data shards that this one leads.
func (s services) MoveLeader(ctx context.Context, node uint64) error {
	return s.node.peers.move(ctx, node)
}

// pebbleLogger passes on what the state's Pebble has to say.
type pebbleLogger struct {
	log *slog.Logger
	// fatal is Options.Fatal.
	fatal func(error)
}

// Infof logs below debug level.
func (p pebbleLogger) Infof(format string, args ...any) { p.at(slog.LevelDebug-4, format, args) }

// Errorf logs at warning level.
func (p pebbleLogger) Errorf(format string, args ...any) { p.at(slog.LevelWarn, format, args) }

// Fatalf logs and panics, as Pebble relies on its not returning. With an error, as of a
// failed fsync, the process ends with that.
func (p pebbleLogger) Fatalf(format string, args ...any) {
	if p.fatal != nil && slices.ContainsFunc(args, func(a any) bool { _, ok := a.(error); return ok }) {
		p.fatal(fmt.Errorf("write state: "+format+"; check the disk that holds the data directory and its free space, then start the node again", args...))
	}
	p.at(slog.LevelError, format, args)
	panic(fmt.Sprintf(format, args...)) //nolint:forbidigo // Pebble counts on it that Fatalf does not return
}

func (p pebbleLogger) at(level slog.Level, format string, args []any) {
	ctx := context.Background()
	if p.log.Enabled(ctx, level) {
		p.log.LogAttrs(ctx, level, "state store", slog.String("text", fmt.Sprintf(format, args...)))
	}
}
