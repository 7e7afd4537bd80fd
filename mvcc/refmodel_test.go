package mvcc

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

var background = context.Background()

// model is the dumb store: a whole map of the keyspace for every revision, and
// a list of all changes.
type model struct {
	rev, compact int64
	states       []modelState
	log          []modelChange
}

type modelState struct {
	rev int64
	kvs map[string]*mvccpb.KeyValue
}

type modelChange struct {
	rev  int64
	sub  int
	dead bool
	kv   *mvccpb.KeyValue
	prev *mvccpb.KeyValue // before the revision
}

func newModel() *model {
	return &model{rev: 1, compact: -1, states: []modelState{{rev: 1}}}
}

// at returns the keyspace at revision rev.
func (m *model) at(rev int64) map[string]*mvccpb.KeyValue {
	var kvs map[string]*mvccpb.KeyValue
	for _, s := range m.states {
		if s.rev <= rev {
			kvs = s.kvs
		}
	}
	return kvs
}

// inRange is etcd's rule for key, range_end.
func inRange(k string, key, end []byte) bool {
	switch string(end) {
	case "":
		return k == string(key)
	case "\x00":
		return k >= string(key)
	}
	return k >= string(key) && k < string(end)
}

func sorted(kvs map[string]*mvccpb.KeyValue, key, end []byte) []*mvccpb.KeyValue {
	var out []*mvccpb.KeyValue
	for _, k := range slices.Sorted(maps.Keys(kvs)) {
		if inRange(k, key, end) {
			out = append(out, kvs[k])
		}
	}
	return out
}

// rangeIn answers r from the model as it was with rev as the newest revision and
// now as its content.
func (m *model) rangeIn(r *pb.RangeRequest, rev int64, now map[string]*mvccpb.KeyValue) (*pb.RangeResponse, error) {
	kvs := now
	if r.Revision > rev {
		return nil, ErrFutureRev
	}
	if r.Revision > 0 {
		if r.Revision < m.compact {
			return nil, ErrCompacted
		}
		if r.Revision < rev {
			kvs = m.at(r.Revision)
		}
	}
	all := sorted(kvs, r.Key, r.RangeEnd)
	resp := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: rev}, Count: int64(len(all))}
	if r.CountOnly {
		return resp, nil
	}
	plain := r.SortOrder == pb.RangeRequest_NONE || r.SortTarget == pb.RangeRequest_KEY && r.SortOrder == pb.RangeRequest_ASCEND
	filters := r.MinModRevision != 0 || r.MaxModRevision != 0 || r.MinCreateRevision != 0 || r.MaxCreateRevision != 0
	if plain && !filters && r.Limit > 0 && int64(len(all)) > r.Limit+1 {
		all = all[:r.Limit+1]
	}
	var out []*mvccpb.KeyValue
	for _, kv := range all {
		if r.MinModRevision != 0 && kv.ModRevision < r.MinModRevision || r.MaxModRevision != 0 && kv.ModRevision > r.MaxModRevision ||
			r.MinCreateRevision != 0 && kv.CreateRevision < r.MinCreateRevision || r.MaxCreateRevision != 0 && kv.CreateRevision > r.MaxCreateRevision {
			continue
		}
		out = append(out, kv)
	}
	slices.SortStableFunc(out, func(a, b *mvccpb.KeyValue) int {
		if r.SortOrder == pb.RangeRequest_DESCEND {
			a, b = b, a
		}
		switch r.SortTarget {
		case pb.RangeRequest_VERSION:
			return cmp.Compare(a.Version, b.Version)
		case pb.RangeRequest_CREATE:
			return cmp.Compare(a.CreateRevision, b.CreateRevision)
		case pb.RangeRequest_MOD:
			return cmp.Compare(a.ModRevision, b.ModRevision)
		case pb.RangeRequest_VALUE:
			return bytes.Compare(a.Value, b.Value)
		case pb.RangeRequest_KEY:
		}
		return bytes.Compare(a.Key, b.Key)
	})
	if r.Limit > 0 && int64(len(out)) > r.Limit {
		out, resp.More = out[:r.Limit], true
	}
	for _, kv := range out {
		if r.KeysOnly {
			kv = &mvccpb.KeyValue{Key: kv.Key, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version, Lease: kv.Lease}
			if r.SortTarget != pb.RangeRequest_VALUE {
				kv.Lease = 0
			}
		}
		resp.Kvs = append(resp.Kvs, kv)
	}
	return resp, nil
}

// modelCmd is a command that runs on the model.
type modelCmd struct {
	m      *model
	leases *fakeLeases
	before map[string]*mvccpb.KeyValue
	now    map[string]*mvccpb.KeyValue
	number int64
	// numbered says that the number was given.
	numbered bool
	sub      int
}

func (m *model) begin(l *fakeLeases, number int64) *modelCmd {
	before := m.states[len(m.states)-1].kvs
	numbered := number != 0
	if numbered {
		m.reach(number - 1)
	} else {
		number = m.rev + 1
	}
	now := maps.Clone(before)
	if now == nil {
		now = make(map[string]*mvccpb.KeyValue)
	}
	return &modelCmd{m: m, leases: l, before: before, now: now, number: number, numbered: numbered}
}

// end makes the command's changes the newest state.
func (c *modelCmd) end() {
	if c.sub > 0 {
		c.m.rev = c.number
		c.m.states = append(c.m.states, modelState{rev: c.number, kvs: c.now})
	}
	if c.numbered {
		c.m.reach(c.number)
	}
}

// reach makes rev the newest revision, if it is not already.
func (m *model) reach(rev int64) {
	if rev > m.rev {
		m.rev = rev
		m.states = append(m.states, modelState{rev: rev, kvs: m.states[len(m.states)-1].kvs})
	}
}

// reached is the revision in the header of the command's answer.
func (c *modelCmd) reached() int64 {
	if c.numbered {
		return c.number
	}
	return c.rev()
}

func (c *modelCmd) rev() int64 {
	if c.sub > 0 {
		return c.number
	}
	return c.m.rev
}

func (c *modelCmd) change(dead bool, kv *mvccpb.KeyValue) {
	c.m.log = append(c.m.log, modelChange{rev: c.number, sub: c.sub, dead: dead, kv: kv, prev: c.before[string(kv.Key)]})
	c.sub++
}

func (c *modelCmd) checkPut(r *pb.PutRequest) error {
	if r.Lease != 0 && !c.leases.Exists(r.Lease) {
		return ErrLeaseNotFound
	}
	if (r.IgnoreLease || r.IgnoreValue) && c.before[string(r.Key)] == nil {
		return ErrKeyNotFound
	}
	return nil
}

func (c *modelCmd) put(r *pb.PutRequest) *pb.PutResponse {
	old := c.now[string(r.Key)]
	kv := &mvccpb.KeyValue{Key: r.Key, Value: r.Value, Lease: r.Lease, CreateRevision: c.number, ModRevision: c.number, Version: 1}
	if old != nil {
		kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
		if r.IgnoreValue {
			kv.Value = old.Value
		}
		if r.IgnoreLease {
			kv.Lease = old.Lease
		}
	}
	c.now[string(r.Key)] = kv
	c.change(false, kv)
	resp := &pb.PutResponse{Header: &pb.ResponseHeader{Revision: c.number}}
	if r.PrevKv {
		resp.PrevKv = old
	}
	return resp
}

func (c *modelCmd) del(r *pb.DeleteRangeRequest) *pb.DeleteRangeResponse {
	victims := sorted(c.now, r.Key, r.RangeEnd)
	for _, kv := range victims {
		delete(c.now, string(kv.Key))
		c.change(true, &mvccpb.KeyValue{Key: kv.Key, ModRevision: c.number})
	}
	resp := &pb.DeleteRangeResponse{Header: &pb.ResponseHeader{Revision: c.rev()}, Deleted: int64(len(victims))}
	if r.PrevKv {
		resp.PrevKvs = victims
	}
	return resp
}

func (c *modelCmd) holds(r *pb.Compare) bool {
	kvs := sorted(c.before, r.Key, r.RangeEnd)
	if len(kvs) == 0 {
		if r.Target == pb.Compare_VALUE {
			return false
		}
		kvs = []*mvccpb.KeyValue{{}}
	}
	for _, kv := range kvs {
		var outcome int
		switch r.Target {
		case pb.Compare_VALUE:
			outcome = strings.Compare(string(kv.Value), string(r.GetValue()))
		case pb.Compare_CREATE:
			outcome = cmp.Compare(kv.CreateRevision, r.GetCreateRevision())
		case pb.Compare_MOD:
			outcome = cmp.Compare(kv.ModRevision, r.GetModRevision())
		case pb.Compare_VERSION:
			outcome = cmp.Compare(kv.Version, r.GetVersion())
		case pb.Compare_LEASE:
			outcome = cmp.Compare(kv.Lease, r.GetLease())
		}
		want := map[pb.Compare_CompareResult]bool{
			pb.Compare_EQUAL: outcome == 0, pb.Compare_NOT_EQUAL: outcome != 0,
			pb.Compare_LESS: outcome < 0, pb.Compare_GREATER: outcome > 0,
		}
		if !want[r.Result] {
			return false
		}
	}
	return true
}

func (c *modelCmd) path(r *pb.TxnRequest) (bool, []*pb.RequestOp) {
	for _, cmp := range r.Compare {
		if !c.holds(cmp) {
			return false, r.Failure
		}
	}
	return true, r.Success
}

func (c *modelCmd) checkTxn(r *pb.TxnRequest) error {
	_, ops := c.path(r)
	for _, op := range ops {
		var err error
		switch op := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			if rev := op.RequestRange.Revision; rev > c.m.rev {
				err = ErrFutureRev
			} else if rev != 0 && rev < c.m.compact {
				err = ErrCompacted
			}
		case *pb.RequestOp_RequestPut:
			err = c.checkPut(op.RequestPut)
		case *pb.RequestOp_RequestTxn:
			err = c.checkTxn(op.RequestTxn)
		case nil:
			err = ErrEmptyOp
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *modelCmd) txn(r *pb.TxnRequest) *pb.TxnResponse {
	ok, ops := c.path(r)
	resp := &pb.TxnResponse{Header: &pb.ResponseHeader{}, Succeeded: ok}
	for _, op := range ops {
		var out pb.ResponseOp
		switch op := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			a, err := c.m.rangeIn(op.RequestRange, c.rev(), c.now)
			if err != nil {
				panic(err)
			}
			out.Response = &pb.ResponseOp_ResponseRange{ResponseRange: a}
		case *pb.RequestOp_RequestPut:
			out.Response = &pb.ResponseOp_ResponsePut{ResponsePut: c.put(op.RequestPut)}
		case *pb.RequestOp_RequestDeleteRange:
			out.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: c.del(op.RequestDeleteRange)}
		case *pb.RequestOp_RequestTxn:
			out.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: c.txn(op.RequestTxn)}
		}
		resp.Responses = append(resp.Responses, &out)
	}
	return resp
}

func (m *model) compactTo(rev int64) error {
	switch {
	case rev <= m.compact:
		return ErrCompacted
	case rev > m.rev:
		return ErrFutureRev
	}
	m.compact = rev
	return nil
}

// attached returns the keys with leases.
func (m *model) attached() map[string]int64 {
	out := make(map[string]int64)
	for k, kv := range m.at(m.rev) {
		if kv.Lease != 0 {
			out[k] = kv.Lease
		}
	}
	return out
}

// sizes returns the logical size of what a fully swept store retains, and of
// the current versions.
func (m *model) sizes() (retained, live int64) {
	size := func(c modelChange) int64 { return int64(len(c.kv.Key)+len(c.kv.Value)) + versionOverhead }
	newest := make(map[string]modelChange) // up to the compaction
	for _, c := range m.log {
		if c.rev <= m.compact {
			newest[string(c.kv.Key)] = c
		}
		if c.rev >= m.compact {
			retained += size(c)
		}
	}
	for _, c := range newest {
		if c.rev < m.compact && !c.dead {
			retained += size(c)
		}
	}
	for _, kv := range m.at(m.rev) {
		live += int64(len(kv.Key)+len(kv.Value)) + versionOverhead
	}
	return retained, live
}
