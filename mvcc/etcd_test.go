package mvcc

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/pkg/v3/traceutil"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
	"go.etcd.io/etcd/server/v3/etcdserver/txn"
	etcdlease "go.etcd.io/etcd/server/v3/lease"
	"go.etcd.io/etcd/server/v3/storage/backend"
	etcdmvcc "go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// etcdMachine runs the same commands on a Store and on etcd's own.
type etcdMachine struct {
	*machine
	lg     *zap.Logger
	kv     etcdmvcc.WatchableKV
	lessor etcdlease.Lessor
}

// sameError compares an error with etcd's.
func (x *etcdMachine) sameError(t *rapid.T, what string, got, want error) {
	pairs := map[error]error{
		etcdmvcc.ErrCompacted: ErrCompacted, etcdmvcc.ErrFutureRev: ErrFutureRev,
		etcderrors.ErrKeyNotFound: ErrKeyNotFound, etcdlease.ErrLeaseNotFound: ErrLeaseNotFound,
	}
	for theirs, ours := range pairs {
		if errors.Is(want, theirs) != errors.Is(got, ours) {
			t.Fatalf("%s: error %v, etcd's %v", what, got, want)
		}
	}
	if (got == nil) != (want == nil) {
		t.Fatalf("%s: error %v, etcd's %v", what, got, want)
	}
}

func (x *etcdMachine) put(t *rapid.T) {
	req := drawPut(t)
	want, _, wantErr := txn.Put(background, x.lg, x.lessor, x.kv, req)
	got, err := x.writer().Put(req, Opts{Want: true})
	x.sameError(t, "put", err, wantErr)
	if err == nil {
		same(t, "put", got, want)
	}
}

func (x *etcdMachine) delete(t *rapid.T) {
	req := drawDelete(t)
	want, _, wantErr := txn.DeleteRange(background, x.lg, x.kv, req)
	got, err := x.writer().DeleteRange(req, Opts{Want: true})
	x.sameError(t, "delete", err, wantErr)
	same(t, "delete", got, want)
}

// lastRev makes the drawing functions draw revisions around etcd's.
func (x *etcdMachine) lastRev() *model {
	r := x.kv.Read(etcdmvcc.ConcurrentReadTxMode, traceutil.TODO())
	defer r.End()
	return &model{rev: r.Rev(), compact: r.FirstRev()}
}

// tame removes from a transaction what etcd can't survive: a put that keeps the
// value of a key deleted before it, and a key that is both deleted and put, which
// is lost when that revision is compacted. It also removes ranges whose order
// etcd leaves open.
func tame(ops []*pb.RequestOp) bool {
	for _, op := range ops {
		switch op := op.Request.(type) {
		case *pb.RequestOp_RequestPut:
			op.RequestPut.IgnoreLease, op.RequestPut.IgnoreValue = false, false
			if string(op.RequestPut.Key) >= "a" && string(op.RequestPut.Key) < "b" {
				op.RequestPut.Key = append([]byte("b/"), op.RequestPut.Key...)
			}
		case *pb.RequestOp_RequestDeleteRange:
			op.RequestDeleteRange.Key, op.RequestDeleteRange.RangeEnd = clip(op.RequestDeleteRange.Key, op.RequestDeleteRange.RangeEnd)
		case *pb.RequestOp_RequestRange:
			tameRange(op.RequestRange)
		case *pb.RequestOp_RequestTxn:
			if !tame(op.RequestTxn.Success) || !tame(op.RequestTxn.Failure) {
				return false
			}
		case nil:
			return false
		}
	}
	return true
}

// clip cuts a range to the keys from a to b.
func clip(key, end []byte) (k, e []byte) {
	s := keys.FromRange(key, end).Intersect(keys.Span{Start: []byte("a"), End: []byte("b")})
	if s.Empty() {
		return []byte("a"), []byte("a")
	}
	return s.Start, s.RangeEnd()
}

// tameRange makes the order of an answer certain: etcd sorts more than twelve
// keys unstably.
func tameRange(r *pb.RangeRequest) {
	if len(r.RangeEnd) > 0 {
		r.Key, r.RangeEnd = clip(r.Key, r.RangeEnd)
	}
}

func (x *etcdMachine) transact(t *rapid.T) {
	req := drawTxn(t, x.lastRev(), 2)
	if !tame(req.Success) || !tame(req.Failure) {
		return
	}
	theirs, ok := proto.Clone(req).(*pb.TxnRequest)
	if !ok {
		t.Fatalf("clone of %T", req)
	}
	want, _, wantErr := txn.Txn(background, x.lg, theirs, true, x.kv, x.lessor, false)
	got, err := x.writer().Txn(req, Opts{Want: true})
	x.sameError(t, "transaction", err, wantErr)
	if err == nil {
		same(t, "transaction", got, want)
	}
}

func (x *etcdMachine) compact(t *rapid.T) {
	rev := drawRev(t, x.lastRev(), "revision")
	done, wantErr := x.kv.Compact(traceutil.TODO(), rev)
	if wantErr == nil {
		<-done
	}
	x.sameError(t, "compact", x.writer().Compact(rev), wantErr)
}

func (x *etcdMachine) rangeNow(t *rapid.T) {
	if x.w != nil {
		x.commit(x.w)
		x.w.batch.Close()
		x.w = nil
	}
	req := drawRangeReq(t, x.lastRev())
	tameRange(req)
	want, _, wantErr := txn.Range(background, x.lg, x.kv, req, true)
	got, err := x.get(req)
	x.sameError(t, "range", err, wantErr)
	if err == nil {
		same(t, "range", got, want)
	}
}

// TestAgainstEtcd compares with etcd's own store, which is in the module's
// requirements for the sake of tests.
func TestAgainstEtcd(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		lg := zap.NewNop()
		cfg := backend.DefaultBackendConfig(lg)
		cfg.Path, cfg.UnsafeNoFsync = filepath.Join(t.TempDir(), "db"), true
		be := backend.New(cfg)
		lessor := &etcdlease.FakeLessor{LeaseSet: make(map[etcdlease.LeaseID]struct{})}
		for id := range etcdlease.LeaseID(3) {
			lessor.LeaseSet[id+1] = struct{}{}
		}
		x := &etcdMachine{
			machine: &machine{env: newEnv(rt, vfs.NewMem())}, lg: lg, lessor: lessor,
			kv: etcdmvcc.New(lg, be, lessor, etcdmvcc.StoreConfig{}),
		}
		defer func() {
			if x.w != nil {
				x.w.batch.Close()
			}
			x.close()
			x.kv.Close()
			be.Close()
		}()
		rt.Repeat(map[string]func(*rapid.T){
			"put": x.put, "put again": x.put, "delete": x.delete, "txn": x.transact, "txn again": x.transact,
			"compact": x.compact, "range": x.rangeNow, "range again": x.rangeNow,
		})
	})
}
