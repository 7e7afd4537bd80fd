package faults

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// freeDisk gives a node its space back, starts it if it has stopped, and lets clients
// write again.
func (n *Nemesis) freeDisk(node int) error {
	if err := n.Gear.Disks.Free(node); err != nil {
		return err
	}
	client, err := Dial(n.Cluster.Nodes[node].Client)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // what counts has been answered
	for deadline := time.Now().Add(healTimeout); ; {
		// A node that could not write may be about to stop, and stops though it has space again.
		if err := n.Cluster.Nodes[node].Launch(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), attempt)
		_, err := client.AlarmDisarm(ctx, &clientv3.AlarmMember{}) // all of them
		if err == nil {
			err = n.Cluster.AwaitHealthy(ctx)
		}
		cancel()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// syncPatience is how long a node may take to stop that can't sync.
const syncPatience = 20 * time.Second

// endFailingSyncs sees to it that a node whose fsyncs fail has stopped, mends them and
// starts it.
func (n *Nemesis) endFailingSyncs(node int) error {
	if err := n.awaitStop(node); err != nil {
		return err
	}
	n.Gear.Disks.FailSyncs(node, false)
	return n.Cluster.Nodes[node].Launch()
}

// awaitStop writes through the other nodes until one has stopped.
func (n *Nemesis) awaitStop(node int) (err error) {
	var others []string
	for i, endpoint := range n.Cluster.Endpoints() {
		if i != node {
			others = append(others, endpoint)
		}
	}
	client, err := Dial(others...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	for deadline := time.Now().Add(syncPatience); time.Now().Before(deadline); {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, _ = client.Put(ctx, fmt.Sprintf("n/sync/%d", node), "") // it may fail, and is there to be synced
		cancel()
		if ended, _ := n.Cluster.Nodes[node].Ended(100 * time.Millisecond); ended {
			return nil
		}
	}
	n.Report.Violation("node %d goes on although its fsyncs fail", node+1)
	return nil
}
