package mvcc

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"pgregory.net/rapid"
)

// crashMachine takes copies of the disk as a power cut would leave it and opens
// them.
type crashMachine struct {
	*machine
	mem *vfs.MemFS
	// past are the model's states after each published batch, with what was
	// compacted by then.
	past []model
	// synced is the revision that is safely on disk.
	synced int64
}

func (x *crashMachine) publish(t *rapid.T) {
	x.machine.publish(t)
	x.past = append(x.past, *x.m)
}

func (x *crashMachine) sync(t *rapid.T) {
	x.publish(t)
	if err := x.db.LogData(nil, pebble.Sync); err != nil {
		t.Fatalf("sync: %v", err)
	}
	x.synced = x.m.rev
}

func (x *crashMachine) flush(t *rapid.T) {
	x.publish(t)
	if err := x.db.Flush(); err != nil {
		t.Fatalf("flush: %v", err)
	}
	x.synced = x.m.rev
}

// crash opens a copy of the disk with a random part of what was not synced. It
// must hold the store as it was after one of the batches.
func (x *crashMachine) crash(t *rapid.T) {
	clone := x.mem.CrashClone(vfs.CrashCloneCfg{
		UnsyncedDataPercent: rapid.SampledFrom([]int{0, 30, 80, 100}).Draw(t, "percent"),
		RNG:                 rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)),
	})
	e := newEnv(t, clone)
	defer e.close()
	rev := e.s.Rev()
	if rev < x.synced {
		t.Fatalf("revision %d after a crash, %d was synced", rev, x.synced)
	}
	v := e.s.View()
	m := x.find(t, rev, v.Compacted())
	for at := max(m.compact, 0); at <= rev; at++ {
		req := &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Revision: at}
		got, err := v.Range(background, req)
		if err != nil {
			t.Fatalf("range at %d after a crash: %v", at, err)
		}
		want, err := m.rangeIn(req, rev, m.at(rev))
		if err != nil {
			t.Fatalf("model: %v", err)
		}
		same(t, fmt.Sprintf("range at %d after a crash", at), got, want)
	}
	sameLeases(t, e.leases.attached, m.attached())
	v.Close()

	// Life goes on: what was half swept can be swept, and revisions go on.
	e.sweepAll()
	retained, live := m.sizes()
	v = e.s.View()
	if v.Size() != retained || v.LiveSize() != live {
		t.Fatalf("size %d and %d after a crash, want %d and %d", v.Size(), v.LiveSize(), retained, live)
	}
	v.Close()
	if got := e.put("after", "crash"); got != rev+1 {
		t.Fatalf("put at %d after a crash at %d", got, rev)
	}
}

// find returns the state of the model that a store at rev and compact is in.
func (x *crashMachine) find(t *rapid.T, rev, compact int64) model {
	for _, m := range x.past {
		if m.rev == rev && m.compact == compact {
			m.log = nil
			for _, c := range x.m.log {
				if c.rev <= rev {
					m.log = append(m.log, c)
				}
			}
			return m
		}
	}
	t.Fatalf("no batch ended at revision %d, compacted %d", rev, compact)
	return model{}
}

func TestCrash(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fs := vfs.NewCrashableMem()
		x := &crashMachine{mem: fs, machine: &machine{env: newEnv(t, fs), m: newModel(), published: modelState{rev: 1}, pubComp: -1}}
		x.past = append(x.past, *x.m)
		defer func() {
			if x.w != nil {
				x.w.batch.Close()
			}
			x.close()
		}()
		t.Repeat(map[string]func(*rapid.T){
			"put": x.put, "put again": x.put, "delete": x.delete, "txn": x.transact, "compact": x.compactSome,
			"publish": x.publish, "publish again": x.publish, "sweep": x.sweepSome, "sync": x.sync, "flush": x.flush, "crash": x.crash,
		})
	})
}
