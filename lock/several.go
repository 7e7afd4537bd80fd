package lock

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"
)

// MaxNames is how many locks can be acquired together.
const MaxNames = 64

// AcquireAll returns when the client has the locks of all names, or none. They are asked for
// one after the other in the order of their names, so that those who do so never wait for each
// other in a circle. r says the rest; its Wait is for all together.
func (s *Service) AcquireAll(ctx context.Context, names []string, r *Request) ([]*Grant, error) {
	if len(names) == 0 || len(names) > MaxNames {
		return nil, &FieldError{"keys", "must be from 1 to 64"}
	}
	names = slices.Sorted(slices.Values(names))
	requests := make([]*Request, len(names))
	for i, name := range names {
		one := *r
		one.Name = name
		requests[i] = &one
		if err := one.check(); err != nil {
			return nil, err
		}
		if i > 0 && name == names[i-1] {
			return nil, &FieldError{"keys", "names a lock twice"}
		}
	}
	a := all{s: s, r: r}
	err := a.acquire(ctx, requests)
	if err == nil {
		err = a.conclude(ctx)
	}
	if err != nil {
		a.giveUp(ctx)
		return nil, s.toCaller(ctx, err)
	}
	return a.grants, nil
}

// all is what one call of AcquireAll has got so far.
type all struct {
	s       *Service
	r       *Request
	tickets []*ticket
	grants  []*Grant
}

// acquire takes the locks one by one, and keeps those that it has got.
func (a *all) acquire(ctx context.Context, requests []*Request) error {
	began := a.s.now()
	for _, r := range requests {
		r.Wait = max(0, a.r.Wait-a.s.now().Sub(began))
		t := a.s.newTicket(r)
		if t.entry.Own {
			for _, had := range a.tickets {
				t.keep = append(t.keep, had.got.leases()...)
			}
		}
		g, err := a.s.acquire(ctx, t)
		if err != nil {
			return err
		}
		a.tickets, a.grants = append(a.tickets, t), append(a.grants, g)
	}
	return nil
}

// conclude renews what was got first, and proves that it is still there.
func (a *all) conclude(ctx context.Context) error {
	last := len(a.grants) - 1
	g, ctx := errgroup.WithContext(ctx)
	for i, t := range a.tickets[:last] {
		g.Go(func() error {
			grant, err := a.s.renewed(ctx, t, t.got, func(ctx context.Context) error {
				_, err := a.s.prove(ctx, t.got.Place)
				return err
			})
			a.grants[i] = grant
			return err
		})
	}
	return g.Wait()
}

func (a *all) giveUp(ctx context.Context) {
	for _, t := range a.tickets {
		a.s.giveUp(ctx, t, t.got.Place)
	}
}
