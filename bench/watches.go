package main

import (
	"context"
	"slices"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// fan is one client that writes keys in turn and the others that watch them. It measures
// with the writer's clock: the value is the time.
type fan struct {
	o     options
	conns []*clientv3.Client
	// keys are written in turn; own is the set of them.
	keys []string
	own  map[string]bool
	// watched and opts are what each watch is of. It may be more than the keys.
	watched string
	opts    []clientv3.OpOption
}

func fanout(_ context.Context, o options, conns []*clientv3.Client) (work, error) {
	name, err := naming()
	if err != nil {
		return nil, err
	}
	key := name(0, "key")
	return fan{o: o, conns: conns, keys: []string{key}, own: map[string]bool{key: true}, watched: key}.work, nil
}

func events(_ context.Context, o options, conns []*clientv3.Client) (work, error) {
	name, err := naming()
	if err != nil {
		return nil, err
	}
	f := fan{o: o, conns: conns, own: make(map[string]bool), opts: []clientv3.OpOption{clientv3.WithPrefix()}}
	for place := range 256 {
		f.keys = append(f.keys, name(place, "key"))
		f.own[f.keys[place]] = true
	}
	return f.work, nil
}

func (f fan) work(ctx context.Context, m *meter) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := time.Now()
	created := make(chan struct{}, f.o.clients)
	failed := make(chan error, 1)
	go func() { failed <- f.write(ctx, begin, created) }()
	err := each(f.o, f.conns, func(ctx context.Context, _ int, c *clientv3.Client, m *meter) error {
		for r := range c.Watch(ctx, f.watched, append(slices.Clone(f.opts), clientv3.WithCreatedNotify())...) {
			if err := r.Err(); err != nil {
				return err
			}
			if r.Created {
				created <- struct{}{}
			}
			if err := f.count(begin, r.Events, m); err != nil {
				return err
			}
		}
		return nil
	})(ctx, m)
	cancel()
	if werr := <-failed; err == nil && !ended(werr) {
		err = werr
	}
	return err
}

// count adds the events of the fan's own keys.
func (f fan) count(begin time.Time, events []*clientv3.Event, m *meter) error {
	for _, e := range events {
		if e.Type != clientv3.EventTypePut || !f.own[string(e.Kv.Key)] {
			continue
		}
		sent, err := strconv.ParseInt(string(e.Kv.Value), 10, 64)
		if err != nil {
			return err
		}
		m.add(begin.Add(time.Duration(sent)))
	}
	return nil
}

// write writes the keys in turn, once all watches are created.
func (f fan) write(ctx context.Context, begin time.Time, created <-chan struct{}) error {
	for range f.o.clients {
		select {
		case <-created:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var turn <-chan time.Time
	if f.o.every > 0 {
		t := time.NewTicker(f.o.every)
		defer t.Stop()
		turn = t.C
	}
	for n := 0; ctx.Err() == nil; n++ {
		if turn != nil {
			select {
			case <-turn:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if _, err := f.conns[0].Put(ctx, f.keys[n%len(f.keys)], strconv.FormatInt(int64(time.Since(begin)), 10)); err != nil {
			return err
		}
	}
	return ctx.Err()
}
