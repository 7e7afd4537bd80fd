package faults

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Wide returns the workloads of transactions over several shards.
func Wide(r *Report, seed uint64, clients []*clientv3.Client) []Workload {
	return []Workload{NewTransfers(r, seed, clients), NewMultiRegisters(r, seed, clients), NewGroups(r, seed, clients)}
}

// Run has workloads work while a nemesis breaks their cluster, checks them, and compares
// the replicas. An error says that the run itself failed; broken promises are in the
// report.
func Run(ctx context.Context, n *Nemesis, seed uint64, clients []*clientv3.Client, d time.Duration, workloads ...Workload) error {
	work, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var wg sync.WaitGroup
	for _, w := range workloads {
		wg.Go(func() { w.Run(work) })
	}
	if err := n.Run(work, seed); err != nil {
		// Clients may wait for ever for a cluster that is not whole.
		return err
	}
	wg.Wait()
	for _, w := range workloads {
		w.Check(ctx)
	}
	return Compare(ctx, n.Report, clients)
}

// Compare holds the hashes of all nodes at one revision against each other; each client
// is of another node.
func Compare(ctx context.Context, r *Report, clients []*clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	resp, err := clients[0].Get(ctx, "hash")
	if err != nil {
		return fmt.Errorf("compare replicas: %w", err)
	}
	rev := resp.Header.Revision
	var first *clientv3.HashKVResponse
	for _, c := range clients {
		hash, err := c.HashKV(ctx, c.Endpoints()[0], rev)
		if err != nil {
			return fmt.Errorf("hash of %v: %w", c.Endpoints(), err)
		}
		if first == nil {
			first = hash
		}
		if hash.Hash != first.Hash {
			r.Violation("at revision %d %v has hash %x, %v has %x", rev, c.Endpoints(), hash.Hash, clients[0].Endpoints(), first.Hash)
		}
	}
	return nil
}
