package main

import (
	"context"
	"encoding/json"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// leases is what Kubernetes' locks are.
var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// keyLock is client-go's lock in one key of etcd. It writes what it has read last,
// or nothing: a key that changed since is a conflict.
type keyLock struct {
	client *kubernetes.Client
	key    string
	id     string
	events *journal
	// mod is the key's mod_revision when it was last read or written here, 0 where
	// it did not exist.
	mod int64
}

// Get returns the record and its bytes, by which a change is told.
func (l *keyLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	resp, err := l.client.Kubernetes.Get(ctx, l.key, kubernetes.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("get record: %w", err)
	}
	if resp.KV == nil {
		l.mod = 0
		return nil, nil, apierrors.NewNotFound(leases, l.key)
	}
	record, err := decode(resp.KV)
	if err != nil {
		return nil, nil, err
	}
	l.mod = resp.KV.ModRevision
	return record, resp.KV.Value, nil
}

// Create writes the record where there is none.
func (l *keyLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, 0)
}

// Update writes the record over the one that was read or written last.
func (l *keyLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.mod)
}

func (l *keyLock) write(ctx context.Context, record resourcelock.LeaderElectionRecord, mod int64) error {
	value, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	asked := monotonic()
	resp, err := l.client.Kubernetes.OptimisticPut(ctx, l.key, value, mod, kubernetes.PutOptions{GetOnFailure: true})
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	if !resp.Succeeded {
		return l.refused(mod, resp.KV)
	}
	l.mod = resp.Revision
	wrote := event{By: l.id, Kind: "wrote", At: asked, Done: monotonic(), Rev: resp.Revision}
	if record.HolderIdentity == "" {
		wrote.Kind = "released"
	}
	l.events.note(wrote)
	return nil
}

// refused says why a write found another revision than mod; kv is what it found.
func (l *keyLock) refused(mod int64, kv *mvccpb.KeyValue) error {
	if mod == 0 {
		return apierrors.NewAlreadyExists(leases, l.key)
	}
	holder := "nobody"
	if kv != nil {
		record, err := decode(kv)
		if err != nil {
			return err
		}
		holder = record.HolderIdentity
	}
	return apierrors.NewConflict(leases, l.key, fmt.Errorf("revision %d is no longer the key's, which %q holds", mod, holder))
}

func decode(kv *mvccpb.KeyValue) (*resourcelock.LeaderElectionRecord, error) {
	var record resourcelock.LeaderElectionRecord
	if err := json.Unmarshal(kv.Value, &record); err != nil {
		return nil, fmt.Errorf("decode record of revision %d: %w", kv.ModRevision, err)
	}
	return &record, nil
}

// RecordEvent takes note of nothing: the journal has it all.
func (l *keyLock) RecordEvent(string) {}

// Identity returns the candidate's name.
func (l *keyLock) Identity() string { return l.id }

// Describe names the lock in client-go's messages.
func (l *keyLock) Describe() string { return l.key }
