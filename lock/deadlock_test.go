package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/lock/deadlock"
	"github.com/latchkey-db/latchkey/mvcc"
)

// within is how soon a deadlock must be over.
const within = 2 * time.Second

// nodes are three nodes over one keyspace, which ask each other.
type nodes struct {
	*env

	all []*Service
	// calls are those that were made.
	calls []*acquiring
	// questions counts what they ask, names for how many clients, and to whom which node.
	questions, names atomic.Int64
	to               [3]atomic.Int64
	// asked, if set, runs before a node answers.
	asked func(node int)
	// hung has a node answer nothing until the question is given up, and gone has it refuse.
	hung, gone [3]atomic.Bool
	// late has a node hear nothing of what happens.
	late [3]atomic.Bool
}

// peer is the others as one node sees them.
type peer struct {
	n    *nodes
	self int
}

func (p peer) Nodes() (others []uint64) {
	for i := range p.n.all {
		if i != p.self {
			others = append(others, uint64(i))
		}
	}
	return others
}

func (p peer) Waits(ctx context.Context, node uint64, clients []string) ([]deadlock.Wait, error) {
	p.n.questions.Add(1)
	p.n.names.Add(int64(len(clients)))
	p.n.to[node].Add(1)
	if p.n.gone[node].Load() {
		return nil, errors.New("there is no such node")
	}
	if p.n.hung[node].Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if p.n.asked != nil {
		p.n.asked(int(node))
	}
	return p.n.all[node].Waits(clients), nil
}

// lateNode is a node that may hear late.
type lateNode struct {
	*env

	late *atomic.Bool
}

func (l lateNode) Watchers() Watchers { return lateWatchers{l.env.Watchers(), l.late} }

type lateWatchers struct {
	Watchers

	late *atomic.Bool
}

func (w lateWatchers) Poll() (mvcc.WatchBatch, bool, error) {
	if w.late.Load() {
		return mvcc.WatchBatch{}, false, nil
	}
	return w.Watchers.Poll()
}

// runNodes runs a test of three nodes on one shard and on several.
func runNodes(t *testing.T, test func(*nodes)) {
	t.Helper()
	runBoth(t, func(e *env) {
		n := &nodes{env: e}
		for i := range 3 {
			c := e.config()
			c.Node, c.Peers = lateNode{e, &n.late[i]}, peer{n, i}
			n.all = append(n.all, New(c))
		}
		defer func() {
			for _, a := range n.calls {
				a.cancel()
				<-a.done
			}
			for _, s := range n.all {
				s.Close()
			}
		}()
		test(n)
	})
}

// on has a client ask for a lock on a node.
func (n *nodes) on(node int, client, name string) *acquiring {
	return n.with(node, client, name, func(*Request) {})
}

// with is on with more in the request.
func (n *nodes) with(node int, client, name string, more func(*Request)) *acquiring {
	r := &Request{Name: name, Client: client, TTL: 10 * time.Minute, Wait: time.Hour}
	more(r)
	a := n.acquireAt(n.all[node], r)
	n.calls = append(n.calls, a)
	return a
}

// several has a client ask for locks together, on the last node.
func (n *nodes) several(client string, names ...string) *acquiring {
	ctx, cancel := context.WithCancel(n.ctx())
	a := &acquiring{cancel: cancel, done: make(chan struct{})}
	n.calls = append(n.calls, a)
	go func() {
		defer close(a.done)
		_, a.err = n.all[2].AcquireAll(ctx, names, &Request{Client: client, TTL: 10 * time.Minute, Wait: time.Hour})
	}()
	return a
}

func shared(r *Request) { r.Mode = Shared }

// of is a semaphore's permits.
func of(permits, of int) func(*Request) {
	return func(r *Request) { r.Permits, r.Of = permits, of }
}

// deadlocked fails the test unless a call is ended by a deadlock soon, and returns who waited for
// what.
func (n *nodes) deadlocked(a *acquiring) string {
	n.t.Helper()
	select {
	case <-a.done:
	case <-time.After(within):
		n.t.Fatal("still waits")
	}
	var d *DeadlockError
	if !errors.As(a.err, &d) {
		n.t.Fatalf("got %+v, %v, want a deadlock", a.grant, a.err)
	}
	var all []string
	for _, w := range d.Cycle {
		all = append(all, w.Client+" for "+w.Lock)
	}
	return strings.Join(all, ", ")
}

// wantCycle is deadlocked with what must be told.
func (n *nodes) wantCycle(a *acquiring, want string) {
	n.t.Helper()
	if got := n.deadlocked(a); got != want {
		n.t.Errorf("told %q, want %q", got, want)
	}
}

// wait waits until any deadlock would be over, and fails the test if one of the calls is.
func (n *nodes) wait(as ...*acquiring) {
	n.t.Helper()
	time.Sleep(2 * within)
	n.waits(as...)
}

// Of two clients on two nodes that wait for each other the younger one's call fails, soon, alone and
// with nothing left in the queue; the other waits on and has the lock when it is free.
func TestDeadlock(t *testing.T) {
	for _, other := range []int{0, 2} { // on one node and on two
		runNodes(t, func(n *nodes) {
			l, m := n.granted(n.on(0, "a", "l")), n.granted(n.on(0, "b", "m"))
			older := n.on(0, "b", "l")
			time.Sleep(time.Minute)
			younger := n.on(other, "a", "m")
			n.wantCycle(younger, "a for m, b for l")
			var d *DeadlockError
			if errors.As(younger.err, &d) {
				if age := n.Age(d.Cycle[0].Since); age > within || d.Cycle[0].Token <= d.Cycle[1].Token || n.Age(d.Cycle[1].Since) < time.Minute {
					t.Errorf("%+v", d.Cycle)
				}
			}
			if keys := n.keys("m"); len(keys) != 1 {
				t.Errorf("%q are in the queue", keys)
			}
			n.wait(older)
			n.release(l)
			n.release(n.granted(older))
			n.release(m)
			n.empty()
		})
	}
}

// The cycle may lead over many clients, each on another node, and is told in order; who only waits
// behind it is left alone.
func TestDeadlockOfThree(t *testing.T) {
	runNodes(t, func(n *nodes) {
		for i, name := range []string{"l", "m", "n"} {
			n.granted(n.on(i, fmt.Sprint("c", i), name))
		}
		behind := n.on(1, "behind", "l")
		second := n.on(1, "c1", "n")
		third := n.on(2, "c2", "l")
		n.wait(behind, second, third)
		first := n.on(0, "c0", "m")
		n.wantCycle(first, "c0 for m, c1 for n, c2 for l")
		n.wait(behind, second, third)
	})
}

// The youngest is it by its place, whoever closed the circle: here a call that has waited for long
// fails, since the one that came last is for an older place.
func TestDeadlockFailsTheYoungest(t *testing.T) {
	runNodes(t, func(n *nodes) {
		n.granted(n.on(0, "a", "l"))
		n.granted(n.on(1, "b", "m"))
		n.gone[2].Store(true)
		repeated := func(r *Request) { r.ID = "1" }
		first := n.with(2, "a", "m", repeated)
		younger := n.on(1, "b", "l")
		n.wait(first, younger)
		older := n.with(0, "a", "m", repeated)
		n.wantCycle(younger, "b for l, a for m")
		n.wait(older)
	})
}

// All calls that wait with the youngest place fail, on whichever node.
func TestDeadlockOfTwoCallsForOnePlace(t *testing.T) {
	runNodes(t, func(n *nodes) {
		n.granted(n.on(0, "a", "l"))
		n.granted(n.on(1, "b", "m"))
		older := n.on(1, "b", "l")
		one, two := n.on(0, "a", "m"), n.on(2, "a", "m")
		for _, call := range []*acquiring{one, two} {
			n.wantCycle(call, "a for m, b for l")
		}
		if keys := n.keys("m"); len(keys) != 1 {
			t.Errorf("%q are in the queue", keys)
		}
		n.wait(older)
	})
}

// What may be held together makes no deadlock, and what may not does, by all modes.
func TestDeadlockOfModes(t *testing.T) {
	for _, tc := range []struct {
		name string
		test func(*nodes)
	}{
		{"one of two shared holders", func(n *nodes) {
			n.granted(n.with(0, "a", "l", shared))
			free := n.granted(n.with(1, "free", "l", shared))
			n.granted(n.on(1, "b", "m"))
			older := n.on(2, "b", "l")
			n.wait(older)
			n.wantCycle(n.on(0, "a", "m"), "a for m, b for l")
			n.release(free)
			n.wait(older)
		}},
		{"a reader behind a writer behind a reader", func(n *nodes) {
			n.granted(n.with(0, "a", "l", shared))
			n.granted(n.on(1, "b", "m"))
			writer := n.on(0, "w", "l")
			reader := n.with(1, "b", "l", shared)
			n.wantCycle(n.on(2, "a", "m"), "a for m, b for l, w for l")
			n.wait(writer, reader)
		}},
		{"a semaphore with a holder that may go", func(n *nodes) {
			n.granted(n.with(0, "a", "l", of(1, 2)))
			free := n.granted(n.with(1, "free", "l", of(1, 2)))
			m := n.granted(n.on(1, "b", "m"))
			waits, also := n.with(2, "b", "l", of(1, 2)), n.on(0, "a", "m")
			n.wait(waits, also)
			n.release(free)
			n.granted(waits)
			n.release(m)
			n.granted(also)
		}},
		{"a semaphore of which no holder may go", func(n *nodes) {
			n.granted(n.with(0, "a", "l", of(1, 2)))
			n.granted(n.with(1, "c", "l", of(1, 2)))
			n.granted(n.on(1, "b", "m"))
			waits, also := n.with(2, "b", "l", of(1, 2)), n.on(0, "a", "m")
			n.wait(waits, also)
			n.wantCycle(n.on(0, "c", "m"), "c for m, b for l")
			n.wait(waits, also)
		}},
		{"the semaphore's holders need room for many", func(n *nodes) {
			n.granted(n.with(0, "a", "l", of(1, 3)))
			free := n.granted(n.with(1, "free", "l", of(2, 3)))
			n.granted(n.on(1, "b", "m"))
			// The other holder may go, and two permits would be free, but not three.
			waits := n.with(2, "b", "l", of(3, 3))
			n.wantCycle(n.on(0, "a", "m"), "a for m, b for l")
			n.release(free)
			n.wait(waits)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) { runNodes(t, tc.test) })
	}
}

// A client that asks for another mode of what it has hears of that at once, and does not wait for
// itself.
func TestUpgradeIsNoDeadlock(t *testing.T) {
	runNodes(t, func(n *nodes) {
		n.granted(n.with(0, "a", "l", shared))
		n.refused(n.on(1, "a", "l"), ErrOtherMode)
		// A session may be what a former life of the client has left.
		session, err := n.OpenSession(n.ctx(), time.Minute)
		check(n.t, err)
		n.granted(n.with(0, "b", "m", func(r *Request) { r.Session = session.ID }))
		other := n.on(2, "c", "m")
		anew := n.on(1, "b", "m")
		n.wait(other, anew)
		check(n.t, n.CloseSession(n.ctx(), session.ID))
		n.release(n.granted(other))
		n.granted(anew)
	})
}

// Calls that name no client take no part, neither as who waits nor as who is waited for.
func TestDeadlockIsForClientsWithNames(t *testing.T) {
	runNodes(t, func(n *nodes) {
		n.grant(0x9)
		n.granted(n.on(0, "", "l"))
		n.granted(n.on(0, "b", "m"))
		nameless, named := n.on(1, "", "m"), n.on(2, "b", "l")
		n.wait(nameless, named)
		// Nor do users of etcd's calls.
		recipe := n.lock("m", 0x9)
		n.wait(nameless, named)
		n.wantWaiting(recipe)
		if asked := n.questions.Load(); asked > 0 {
			n.t.Errorf("%d questions for clients without names", asked)
		}
		nameless.cancel()
		n.refused(nameless, context.Canceled)
	})
}

// Several locks at once are waited for like one, with those that are got already, and are given up
// together.
func TestDeadlockOfSeveral(t *testing.T) {
	runNodes(t, func(n *nodes) {
		m := n.granted(n.on(0, "b", "m"))
		n.granted(n.on(0, "d", "x"))
		all := n.several("a", "m", "k")
		n.wait(all)
		n.wantCycle(n.on(1, "b", "k"), "b for k, a for m")
		n.wait(all)
		n.release(m)
		pause()
		check(n.t, all.err)

		older := n.on(0, "d", "k")
		n.wantCycle(n.several("a", "x", "w"), "a for x, d for k")
		if left := append(n.keys("w"), n.keys("x")...); len(left) != 1 {
			n.t.Errorf("%q are left", left)
		}
		n.wait(older)
	})
}

// Who has a lock twice, and gives one hold of it back, still has it.
func TestDeadlockOfAReentrantHold(t *testing.T) {
	runNodes(t, func(n *nodes) {
		n.granted(n.on(0, "a", "l"))
		again := n.granted(n.on(1, "a", "l"))
		n.granted(n.on(1, "b", "m"))
		older := n.on(2, "b", "l")
		n.release(again)
		n.wantCycle(n.on(0, "a", "m"), "a for m, b for l")
		n.wait(older)
	})
}

// A node may not have heard yet that a place is gone. What it tells of makes no deadlock.
func TestNoDeadlockByANodeThatIsLate(t *testing.T) {
	runNodes(t, func(n *nodes) {
		l, m := n.granted(n.on(0, "a", "l")), n.granted(n.on(1, "b", "m"))
		late := n.on(1, "b", "l")
		n.waits(late)
		n.late[1].Store(true)
		n.release(l) // so that b has the lock, though its node does not know it
		waits := n.on(0, "a", "m")
		n.wait(waits)
		n.release(m)
		n.granted(waits)
		late.cancel()
	})
}

// A call that ends while places are proved is not there any more when nodes are asked again.
func TestNoDeadlockWithACallThatHasEnded(t *testing.T) {
	runNodes(t, func(n *nodes) {
		n.granted(n.on(0, "a", "l"))
		m := n.granted(n.on(1, "b", "m"))
		older := n.on(1, "b", "l")
		n.waits(older)
		var once sync.Once
		before := n.proofs.Load()
		n.asked = func(node int) {
			if node == 1 && n.proofs.Load() > before {
				once.Do(func() {
					older.cancel()
					<-older.done
				})
			}
		}
		younger := n.on(0, "a", "m")
		n.wait(younger)
		if !older.answered() {
			n.t.Error("the call has not ended: nothing was proved")
		}
		n.release(m)
		n.granted(younger)
	})
}

// What waits on a node that can't be reached is not known, whether it refuses or hangs. The others
// go on looking, and the deadlock is found when it is back.
func TestDeadlockOverANodeThatIsGone(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		runNodes(t, func(n *nodes) {
			away := &n.gone[2]
			if hangs {
				away = &n.hung[2]
			}
			n.granted(n.on(0, "a", "l"))
			n.granted(n.on(2, "b", "m"))
			away.Store(true)
			older, younger := n.on(2, "b", "l"), n.on(0, "a", "m")
			n.wait(older, younger)
			n.granted(n.on(0, "c", "x"))
			n.granted(n.on(1, "d", "y"))
			also := n.on(0, "c", "y")
			n.wantCycle(n.on(1, "d", "x"), "d for x, c for y")
			asked := n.to[2].Load()
			n.wait(older, younger, also)
			if more := n.to[2].Load() - asked; hangs && more > 0 {
				n.t.Errorf("%d questions while one is open", more)
			}
			if hangs {
				n.all[0].asking(2, false) // as when its link breaks
			}
			away.Store(false)
			n.wantCycle(younger, "a for m, b for l")
			n.wait(older)
		})
	}
}

// Ten thousand waiters for one lock cost a search for its holder, and no proof, at each beat.
func TestDeadlockCost(t *testing.T) {
	waiters := 10_000
	if testing.Short() {
		waiters = 1000
	}
	run(t, whole, func(e *env) {
		n := &nodes{env: e}
		for i := range 3 {
			c := e.config()
			c.Peers = peer{n, i}
			n.all = append(n.all, New(c))
			defer n.all[i].Close()
		}
		n.granted(n.on(0, "holder", "l"))
		ctx, cancel := context.WithCancel(n.ctx())
		var all sync.WaitGroup
		for i := range waiters {
			if i%1000 == 999 {
				time.Sleep(time.Second) // more at once than wait for the log are turned away
			}
			all.Go(func() {
				r := &Request{Name: "l", Client: fmt.Sprint("client ", i), TTL: 10 * time.Minute, Wait: time.Hour}
				if _, err := n.all[i%3].Acquire(ctx, r); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Minute)
		questions, names, proofs, reads := n.questions.Load(), n.names.Load(), e.proofs.Load(), e.reads.Load()
		const beats = 100
		time.Sleep(beats * lookEvery)
		// Three nodes ask two others each, once a beat and for one client.
		if asked := n.questions.Load() - questions; asked > 6*beats+6 || asked < 6*beats-6 {
			t.Errorf("%d questions in %d beats", asked, beats)
		}
		if asked := n.names.Load() - names; asked > 6*beats+6 {
			t.Errorf("asked for %d clients in %d beats", asked, beats)
		}
		if e.proofs.Load() > proofs || e.reads.Load() > reads {
			t.Errorf("%d proofs and %d reads", e.proofs.Load()-proofs, e.reads.Load()-reads)
		}
		// The holder waits for the last of them: its call is found among them all.
		n.granted(n.on(1, "client 0", "m"))
		n.wantCycle(n.on(2, "holder", "m"), "holder for m, client 0 for l")
		cancel()
		all.Wait()
		// Nobody looks any more.
		time.Sleep(time.Minute)
		questions = n.questions.Load()
		time.Sleep(time.Minute)
		if more := n.questions.Load() - questions; more > 0 {
			t.Errorf("%d questions while nobody waits", more)
		}
		for _, s := range n.all {
			s.mu.Lock()
			if s.looking || len(s.clients) > 0 {
				t.Errorf("%d clients are left, somebody looks: %t", len(s.clients), s.looking)
			}
			s.mu.Unlock()
		}
	})
}

// Nobody is asked for who waits a moment.
func TestNoSearchForShortWaits(t *testing.T) {
	runNodes(t, func(n *nodes) {
		n.granted(n.on(0, "a", "l"))
		for range 20 {
			late := n.with(1, "b", "l", func(r *Request) { r.Wait = lookEvery - time.Millisecond })
			<-late.done
			time.Sleep(time.Millisecond)
		}
		if asked := n.questions.Load(); asked > 0 {
			n.t.Errorf("%d questions", asked)
		}
	})
}

// A client of which there is more to tell than is told is taken to go on.
func TestDeadlockOfAClientThatWaitsForMuch(t *testing.T) {
	runNodes(t, func(n *nodes) {
		n.granted(n.on(0, "b", "m"))
		var calls []*acquiring
		for i := range maxWaits + 1 {
			name := fmt.Sprint("k", i)
			n.granted(n.on(0, "a", name))
			calls = append(calls, n.on(1, "b", name))
		}
		// What is told of it elsewhere is not all.
		n.granted(n.on(0, "a", "k"))
		calls = append(calls, n.on(2, "b", "k"))
		younger := n.on(0, "a", "m")
		n.wait(append(calls, younger)...)
		calls[0].cancel()
		n.deadlocked(younger)
		n.wait(calls[1:]...)
	})
}

// Of very many holders the oldest are asked for, and the others when those are gone.
func TestDeadlockBehindManyHolders(t *testing.T) {
	run(t, whole, func(e *env) {
		n := &nodes{env: e, all: []*Service{e.Service}}
		var holders []*Grant
		for range 3 { // nobody asks for these
			n.granted(n.with(0, "", "l", shared))
		}
		for i := range maxBefore {
			holders = append(holders, n.granted(n.with(0, fmt.Sprint("h", i), "l", shared)))
		}
		n.granted(n.with(0, "a", "l", shared))
		n.granted(n.on(0, "b", "m"))
		older, younger := n.on(0, "b", "l"), n.on(0, "a", "m")
		n.wait(older, younger)
		n.release(holders[0])
		n.wantCycle(younger, "a for m, b for l")
		n.waits(older)
		older.cancel()
		<-older.done
	})
}

// endless is a node that knows of each client that it waits behind others, of whom nobody has heard,
// and another one that refuses.
type endless struct {
	behind                    int
	questions, names, refused int
}

func (*endless) Nodes() []uint64 { return []uint64{7, 8} }

func (p *endless) Waits(_ context.Context, node uint64, clients []string) (waits []deadlock.Wait, err error) {
	if node == 8 {
		p.refused++
		return nil, errors.New("no")
	}
	p.questions++
	p.names += len(clients)
	for _, client := range clients {
		w := deadlock.Wait{Client: client, Lock: "lock of " + client}
		for i := range p.behind {
			w.Before = append(w.Before, deadlock.Before{Client: fmt.Sprint(client, i)})
		}
		waits = append(waits, w)
	}
	return waits, nil
}

// A search comes to an end, however much there is to ask.
func TestSearchIsBounded(t *testing.T) {
	run(t, whole, func(e *env) {
		for _, p := range []*endless{{behind: 1}, {behind: 100}} {
			c := e.config()
			c.Peers = p
			s := New(c)
			s.search(p.Nodes()).follow([]string{"a"})
			s.Close()
			if p.questions > maxSteps || p.names > maxAsked || p.questions < maxSteps && p.names < maxAsked {
				t.Errorf("%d questions for %d clients", p.questions, p.names)
			}
			if p.refused != 1 {
				t.Errorf("asked %d times who refuses", p.refused)
			}
		}
	})
}

// Who may not read a lock learns nothing of it.
func TestDeadlockTellsWhatMayBeRead(t *testing.T) {
	for _, tc := range []struct {
		hidden, want string
	}{
		{"", "a for m, b for n, c for l"},
		{"l", "a for m, b for n, c for "},
		{"n", "a for m, b for , c for l"},
		{"ln", "a for m, b for ,  for "},
	} {
		runNodes(t, func(n *nodes) {
			n.granted(n.on(0, "a", "l"))
			n.granted(n.on(1, "b", "m"))
			n.granted(n.on(2, "c", "n"))
			n.on(1, "b", "n")
			n.on(2, "c", "l")
			n.hidden = func(r *pb.RangeRequest) bool {
				return slices.Contains(strings.Split(tc.hidden, ""), strings.TrimSuffix(string(r.Key), "/"))
			}
			call := n.on(0, "a", "m")
			n.wantCycle(call, tc.want)
			n.wantCycle(n.several("a", "m", "x"), tc.want)
			var d *DeadlockError
			if errors.As(call.err, &d) && tc.hidden == "ln" && d.Cycle[2] != (Waiting{}) {
				t.Errorf("%+v", d.Cycle)
			}
		})
	}
}
