package mvcc

import (
	"maps"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

// fataler is what *testing.T and *rapid.T share.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// quiet keeps Pebble from writing to the test's output.
type quiet struct{ t fataler }

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (q quiet) Fatalf(format string, args ...any) {
	q.t.Fatalf(format, args...)
}

// fakeLeases knows the leases 1 to 3 and what is attached to them.
type fakeLeases struct {
	attached map[string]int64
}

func (f *fakeLeases) Exists(id int64) bool { return id >= 1 && id <= 3 }

func (f *fakeLeases) Attach(id int64, key []byte) { f.attached[string(key)] = id }

func (f *fakeLeases) Detach(id int64, key []byte) {
	if f.attached[string(key)] == id {
		delete(f.attached, string(key))
	}
}

// env is a store in a file system in memory.
type env struct {
	t      fataler
	fs     vfs.FS
	db     *pebble.DB
	s      *Store
	leases fakeLeases
	// memTable and cache are sizes of Pebble's.
	memTable uint64
	cache    int64
}

var testPrefix = []byte("shard/")

func newEnv(t fataler, fs vfs.FS) *env {
	e := &env{t: t, fs: fs, leases: fakeLeases{attached: make(map[string]int64)}, memTable: 1 << 20}
	e.open()
	return e
}

func (e *env) open() {
	e.t.Helper()
	db, err := pebble.Open("db", &pebble.Options{
		FS: e.fs, Logger: quiet{e.t}, MemTableSize: e.memTable, CacheSize: e.cache, FormatMajorVersion: pebble.FormatNewest,
	})
	if err != nil {
		e.t.Fatalf("open Pebble: %v", err)
	}
	// What lies beside the store must never matter to it.
	for _, k := range []string{"shard.", "shard/", "shard/a", "shard/i", "shard/l", "shard/n", "shard/x", "shard0"} {
		if err := db.Set([]byte(k), []byte("not mine"), pebble.NoSync); err != nil {
			e.t.Fatalf("set: %v", err)
		}
	}
	e.db = db
	if e.s, err = Open(db, testPrefix); err != nil {
		e.t.Fatalf("open store: %v", err)
	}
	clear(e.leases.attached)
	v := e.s.View()
	defer v.Close()
	v.EachLease(func(id int64, key []byte) bool {
		e.leases.Attach(id, key)
		return true
	})
}

func (e *env) close() {
	e.t.Helper()
	if err := e.db.Close(); err != nil {
		e.t.Fatalf("close Pebble: %v", err)
	}
}

// apply runs fn with the writer of a batch, commits it and publishes it.
func (e *env) apply(fn func(w *Writer)) {
	e.t.Helper()
	b := e.db.NewBatch()
	defer b.Close()
	w := e.s.NewWriter(b, &e.leases)
	fn(w)
	e.commit(w)
}

func (e *env) commit(w *Writer) {
	e.t.Helper()
	if err := w.Finish(); err != nil {
		e.t.Fatalf("finish: %v", err)
	}
	if err := w.batch.Commit(pebble.NoSync); err != nil {
		e.t.Fatalf("commit: %v", err)
	}
	w.Publish()
}

func (e *env) put(key, value string) int64 {
	e.t.Helper()
	return e.putReq(&pb.PutRequest{Key: []byte(key), Value: []byte(value)}).Header.Revision
}

func (e *env) putReq(req *pb.PutRequest) (resp *pb.PutResponse) {
	e.t.Helper()
	e.apply(func(w *Writer) {
		var err error
		if resp, err = w.Put(req, Opts{Want: true}); err != nil {
			e.t.Fatalf("put: %v", err)
		}
	})
	return resp
}

func (e *env) del(key, end string) (resp *pb.DeleteRangeResponse) {
	e.t.Helper()
	e.apply(func(w *Writer) {
		var err error
		resp, err = w.DeleteRange(&pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end), PrevKv: true}, Opts{Want: true})
		if err != nil {
			e.t.Fatalf("delete: %v", err)
		}
	})
	return resp
}

func (e *env) txn(req *pb.TxnRequest) (resp *pb.TxnResponse, err error) {
	e.t.Helper()
	e.apply(func(w *Writer) { resp, err = w.Txn(req, Opts{Want: true}) })
	return resp, err
}

func (e *env) compact(rev int64) (err error) {
	e.t.Helper()
	e.apply(func(w *Writer) { err = w.Compact(rev) })
	return err
}

// sweepAll sweeps until nothing is left.
func (e *env) sweepAll() {
	e.t.Helper()
	for {
		done, err := e.s.Sweep(3)
		if err != nil {
			e.t.Fatalf("sweep: %v", err)
		}
		if done {
			return
		}
	}
}

// get returns the answer to a range request from the newest state.
func (e *env) get(req *pb.RangeRequest) (*pb.RangeResponse, error) {
	v := e.s.View()
	defer v.Close()
	return v.Range(background, req)
}

func (e *env) mustGet(req *pb.RangeRequest) *pb.RangeResponse {
	e.t.Helper()
	resp, err := e.get(req)
	if err != nil {
		e.t.Fatalf("range %v: %v", req, err)
	}
	return resp
}

// same fails the test if got is not want.
func same(t fataler, what string, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Fatalf("%s: (-got +want)\n%s", what, cmp.Diff(got, want, protocmp.Transform()))
	}
}

func sameLeases(t fataler, got, want map[string]int64) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Fatalf("attached keys: (-got +want)\n%s", cmp.Diff(got, want))
	}
}

// memEnv returns an environment that ends with the test.
func memEnv(t *testing.T) *env {
	t.Helper()
	e := newEnv(t, vfs.NewMem())
	t.Cleanup(e.close)
	return e
}
