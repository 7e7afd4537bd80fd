package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "clientgo:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("clientgo", flag.ContinueOnError)
	endpoint := flags.String("endpoint", "127.0.0.1:2379", "the server")
	key := flags.String("key", "election", "the lock's key")
	id := flags.String("id", "", "the candidates' names, with commas between them")
	lease := flags.Duration("lease", 15*time.Second, "how long others wait for a leader that is silent")
	renew := flags.Duration("renew", 10*time.Second, "how long a leader tries to renew before it gives up")
	retry := flags.Duration("retry", 2*time.Second, "time between tries")
	release := flags.Bool("release", false, "give the lock back at the end")
	if err := flags.Parse(args); err != nil {
		return err
	}
	client, err := kubernetes.New(clientv3.Config{
		Endpoints: []string{*endpoint}, DialKeepAliveTime: 30 * time.Second, DialKeepAliveTimeout: 10 * time.Second,
	})
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = client.Close() }()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	events := &journal{out: os.Stdout}
	var running sync.WaitGroup
	for name := range strings.SplitSeq(*id, ",") {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock:            &keyLock{client: client, key: *key, id: name, events: events},
			LeaseDuration:   *lease,
			RenewDeadline:   *renew,
			RetryPeriod:     *retry,
			ReleaseOnCancel: *release,
			Name:            *key,
			Callbacks:       callbacks(name, events),
		})
		if err != nil {
			return fmt.Errorf("make elector: %w", err)
		}
		running.Go(func() { stand(ctx, elector, name, events) })
	}
	running.Wait()
	return events.close()
}

func callbacks(name string, events *journal) leaderelection.LeaderCallbacks {
	return leaderelection.LeaderCallbacks{
		OnStartedLeading: func(context.Context) { events.note(event{By: name, Kind: "started", At: monotonic()}) },
		// It is called for those who never led, too; the end of Run says as much.
		OnStoppedLeading: func() {},
	}
}

// stand runs for the lead until the lead is lost or ctx is done.
func stand(ctx context.Context, elector *leaderelection.LeaderElector, name string, events *journal) {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ignore := context.AfterFunc(ctx, func() {
		// What runs under the lock ends before the lock is given back.
		events.note(event{By: name, Kind: "yielding", At: monotonic()})
		cancel()
	})
	defer ignore()
	elector.Run(inner)
	events.note(event{By: name, Kind: "stopped", At: monotonic()})
}
