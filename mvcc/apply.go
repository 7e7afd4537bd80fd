package mvcc

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// Put applies a put. It may reject it with ErrLeaseNotFound or ErrKeyNotFound.
func (w *Writer) Put(req *pb.PutRequest, o Opts) (*pb.PutResponse, error) {
	w.begin(o)
	defer w.end()
	if err := w.checkPut(req); err != nil {
		return nil, err
	}
	var resp *pb.PutResponse
	if o.Want {
		resp = &pb.PutResponse{Header: &pb.ResponseHeader{}}
	}
	if err := w.put(req, resp); err != nil {
		return nil, fmt.Errorf("put %q: %w", req.Key, err)
	}
	return resp, nil
}

// DeleteRange applies a delete of all keys in a range.
func (w *Writer) DeleteRange(req *pb.DeleteRangeRequest, o Opts) (*pb.DeleteRangeResponse, error) {
	w.begin(o)
	defer w.end()
	resp, err := w.deleteRange(req, o.Want)
	if err != nil {
		return nil, fmt.Errorf("delete %q: %w", req.Key, err)
	}
	if resp != nil {
		resp.Header.Revision = w.reached()
	}
	return resp, nil
}

// DeleteKeys deletes those of the given keys that exist, in key order and at
// one revision: the end of a lease. It returns the revision that follows and
// the number of keys deleted.
func (w *Writer) DeleteKeys(victims [][]byte, o Opts) (rev int64, n int, err error) {
	w.begin(o)
	defer w.end()
	sorted := slices.SortedFunc(slices.Values(victims), bytes.Compare)
	for _, key := range sorted {
		old := w.get(key)
		if old == nil {
			continue
		}
		if err := w.kill(old); err != nil {
			return 0, 0, fmt.Errorf("delete %q: %w", key, err)
		}
		n++
	}
	return w.reached(), n, nil
}

// Txn applies a transaction. Everything that could fail on the path it takes is
// checked before the first operation runs, so that a rejection (ErrCompacted,
// ErrFutureRev, ErrLeaseNotFound, ErrKeyNotFound, ErrEmptyOp) leaves no trace.
func (w *Writer) Txn(req *pb.TxnRequest, o Opts) (*pb.TxnResponse, error) {
	w.begin(o)
	defer w.end()
	b, err := w.plan(context.Background(), req)
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	if err := w.checkBranch(&b); err != nil {
		return nil, err
	}
	w.counters.countTxn(&b)
	var resp *pb.TxnResponse
	if o.Want {
		resp = newTxnResponse(&b)
	}
	if err := w.runBranch(&b, resp); err != nil {
		return nil, fmt.Errorf("run transaction: %w", err)
	}
	if resp != nil {
		resp.Header.Revision = w.reached()
	}
	return resp, nil
}

func (w *Writer) checkPut(req *pb.PutRequest) error {
	if req.Lease != 0 && !w.leases.Exists(req.Lease) {
		return ErrLeaseNotFound
	}
	if (req.IgnoreValue || req.IgnoreLease) && w.get(req.Key) == nil {
		return ErrKeyNotFound
	}
	return nil
}

// checkBranch returns the error for which a transaction on branch b is
// rejected. Puts are checked against the state before the transaction.
func (w *Writer) checkBranch(b *branch) error {
	nested := b.nested
	for _, op := range b.ops {
		var err error
		switch op := op.GetRequest().(type) {
		case *pb.RequestOp_RequestRange:
			err = w.checkTxnRange(op.RequestRange)
		case *pb.RequestOp_RequestPut:
			err = w.checkPut(op.RequestPut)
		case *pb.RequestOp_RequestDeleteRange:
		case *pb.RequestOp_RequestTxn:
			err = w.checkBranch(&nested[0])
			nested = nested[1:]
		default:
			err = ErrEmptyOp
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// runBranch runs the operations of branch b and puts their answers into resp,
// if it is not nil.
func (w *Writer) runBranch(b *branch, resp *pb.TxnResponse) error {
	nested := b.nested
	var puts []putAnswer
	for i, op := range b.ops {
		var out *pb.ResponseOp
		var err error
		switch op := op.GetRequest().(type) {
		case *pb.RequestOp_RequestRange:
			var a pb.ResponseOp_ResponseRange
			if resp != nil {
				a.ResponseRange, err = w.rangeKeys(context.Background(), op.RequestRange)
			}
			out = &pb.ResponseOp{Response: &a}
		case *pb.RequestOp_RequestPut:
			if resp == nil {
				err = w.put(op.RequestPut, nil)
				break
			}
			if len(puts) == 0 {
				puts = make([]putAnswer, min(countPuts(b.ops[i:]), maxPutAnswers))
			}
			out = puts[0].link()
			err = w.put(op.RequestPut, &puts[0].put)
			puts = puts[1:]
		case *pb.RequestOp_RequestDeleteRange:
			var a pb.ResponseOp_ResponseDeleteRange
			a.ResponseDeleteRange, err = w.deleteRange(op.RequestDeleteRange, resp != nil)
			out = &pb.ResponseOp{Response: &a}
		case *pb.RequestOp_RequestTxn:
			var a pb.ResponseOp_ResponseTxn
			if resp != nil {
				a.ResponseTxn = newTxnResponse(&nested[0])
			}
			err = w.runBranch(&nested[0], a.ResponseTxn)
			nested = nested[1:]
			out = &pb.ResponseOp{Response: &a}
		}
		if err != nil {
			return err
		}
		if resp != nil {
			resp.Responses[i] = out
		}
	}
	return nil
}

// maxPutAnswers is the number of answers to puts that are made at a time.
const maxPutAnswers = 64

// putAnswer is the answer to a put within a transaction, in one piece.
type putAnswer struct {
	op     pb.ResponseOp
	choice pb.ResponseOp_ResponsePut
	put    pb.PutResponse
	header pb.ResponseHeader
}

func countPuts(ops []*pb.RequestOp) (n int) {
	for _, op := range ops {
		if _, ok := op.GetRequest().(*pb.RequestOp_RequestPut); ok {
			n++
		}
	}
	return n
}

// link joins the parts of an answer.
func (a *putAnswer) link() *pb.ResponseOp {
	a.put.Header = &a.header
	a.choice.ResponsePut = &a.put
	a.op.Response = &a.choice
	return &a.op
}

// put writes a new version of a key. The request has been checked, but in a
// transaction the key may have gone since. The answer goes into resp, if it is not
// nil; its header is there.
func (w *Writer) put(req *pb.PutRequest, resp *pb.PutResponse) error {
	w.counters.puts.Add(1)
	w.counters.putBytes.Add(int64(len(req.Key) + len(req.Value)))
	old := w.get(req.Key)
	value := req.Value
	if old != nil && (req.IgnoreValue || req.PrevKv && resp != nil) {
		kv, err := w.kv(old)
		if err != nil {
			return err
		}
		if req.IgnoreValue {
			value = kv.Value
		}
		if req.PrevKv && resp != nil {
			resp.PrevKv = kv
		}
	}
	it := &item{lease: req.Lease, create: w.number, version: 1, key: req.Key}
	var held int64
	if old != nil {
		it.key, it.create, it.version = old.key, old.create, old.version+1
		held = old.lease
		if req.IgnoreLease {
			it.lease = old.lease
		}
	}
	if err := w.write(it, old, value); err != nil {
		return err
	}
	if held != it.lease {
		if held != 0 {
			w.leases.Detach(held, it.key)
		}
		if it.lease != 0 {
			w.leases.Attach(it.lease, it.key)
		}
	}
	if resp != nil {
		resp.Header.Revision = w.rev
	}
	return nil
}

// deleteRange deletes the keys of a range.
func (w *Writer) deleteRange(req *pb.DeleteRangeRequest, want bool) (*pb.DeleteRangeResponse, error) {
	w.counters.deletes.Add(1)
	var victims []*item
	if len(req.RangeEnd) == 0 {
		if old := w.get(req.Key); old != nil {
			victims = []*item{old}
		}
	} else {
		w.ascend(keys.FromRange(req.Key, req.RangeEnd), func(it *item) bool {
			victims = append(victims, it)
			return true
		})
	}
	var resp *pb.DeleteRangeResponse
	if want {
		resp = &pb.DeleteRangeResponse{Header: &pb.ResponseHeader{}, Deleted: int64(len(victims))}
		if req.PrevKv && len(victims) > 0 {
			var err error
			if resp.PrevKvs, err = w.kvs(context.Background(), &pb.RangeRequest{}, victims); err != nil {
				return nil, err
			}
		}
	}
	for _, old := range victims {
		if err := w.kill(old); err != nil {
			return nil, err
		}
	}
	if resp != nil {
		resp.Header.Revision = w.rev
	}
	return resp, nil
}

// kill writes the tombstone of a key, whose current version is old.
func (w *Writer) kill(old *item) error {
	if err := w.write(&item{key: old.key, dead: true}, old, nil); err != nil {
		return err
	}
	if old.lease != 0 {
		w.leases.Detach(old.lease, old.key)
	}
	return nil
}
