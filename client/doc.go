// Package client takes locks, on Latchkey and on etcd, and tells their holders in time when
// they may have lost them.
//
//	c := client.New(etcd) // a *clientv3.Client
//	session, err := c.Open(ctx, 10*time.Second)
//	grant, err := session.Acquire(ctx, "accounts/7")
//	defer grant.Release(ctx)
//	write(grant.Context(), grant.Token())
//
// A session is a lease that is renewed for as long as it is open, and all its locks last with
// it. The context of a grant is cancelled before the lease can have ended: it counts from when
// the last renewal that was answered was sent, on a clock that does not stand still while the
// process does, less a margin for clocks of different rates. What is written behind that
// must carry the token, which package fence checks at the resource: no client can know that a
// write which is under way arrives in time.
//
// The locks are those of etcd's recipes: users of concurrency.Mutex, etcdctl lock and the
// lock services stand in the same line, in the order in which they came.
package client
