package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/peer"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/system"
)

// oneLeader answers every call with the same.
type oneLeader struct {
	result any
	index  uint64
	block  raft.Block
	since  raft.Since
	proved []bool
	err    error
	// heard is what was asked.
	heard string
}

func (l *oneLeader) Propose(_ context.Context, kind raft.Kind, payload []byte) (any, uint64, error) {
	l.heard = fmt.Sprintf("propose %d %s", kind, payload)
	return l.result, l.index, l.err
}

func (l *oneLeader) Confirm(context.Context) (uint64, error) {
	l.heard = "confirm"
	return l.index, l.err
}

func (l *oneLeader) Ask(_ context.Context, count int, by raft.Leading, voted raft.Voted) (raft.Block, error) {
	l.heard = fmt.Sprintf("ask %d by %v, voted %v", count, by, voted)
	return l.block, l.err
}

func (l *oneLeader) Prove(_ context.Context, claims []raft.Claim) (raft.Since, []bool, error) {
	l.heard = fmt.Sprintf("prove %v", claims)
	return l.since, l.proved, l.err
}

// direct is a mesh to one server; err, unless nil, comes instead of an answer.
type direct struct {
	server *Server
	err    error
}

func (d *direct) Call(ctx context.Context, _ uint64, request []byte) ([]byte, error) {
	if d.err != nil {
		return nil, d.err
	}
	return d.server.Handle(ctx, request), nil
}

func systemAt(t *testing.T, l system.Leader) (*systemLeader, *direct) {
	t.Helper()
	d := &direct{server: &Server{System: l}}
	return &systemLeader{client{mesh: d, node: 2, over: t.Context()}}, d
}

func TestSystemCallsTravel(t *testing.T) {
	for _, result := range []any{nil, true, false, "", "a.token"} {
		there := &oneLeader{result: result, index: 1 << 40}
		l, _ := systemAt(t, there)
		got, index, err := l.Propose(t.Context(), 7, []byte("payload"))
		if got != result || index != 1<<40 || err != nil || there.heard != "propose 7 payload" {
			t.Errorf("%v came as %v at %d, %v; asked %q", result, got, index, err, there.heard)
		}
	}
	there := &oneLeader{index: 9, block: raft.Block{First: 5, Newest: 7, Compacted: -1}}
	l, _ := systemAt(t, there)
	if index, err := l.Confirm(t.Context()); index != 9 || err != nil || there.heard != "confirm" {
		t.Errorf("confirmed at %d, %v", index, err)
	}
	for _, asks := range []struct {
		count int
		by    raft.Leading
		voted raft.Voted
	}{
		{3, raft.Leading{ShardID: 4, Term: 5}, raft.Voted{}},
		{3, raft.Leading{ShardID: 4, Term: 5}, raft.Voted{ReplicaID: 6, Term: 7}},
		{0, raft.Leading{}, raft.Voted{ReplicaID: 6, Term: 7}},
		{0, raft.Leading{}, raft.Voted{}},
	} {
		b, err := l.Ask(t.Context(), asks.count, asks.by, asks.voted)
		if want := fmt.Sprintf("ask %d by %v, voted %v", asks.count, asks.by, asks.voted); b != there.block || err != nil || there.heard != want {
			t.Errorf("numbers %+v, %v; asked %q, expected %q", b, err, there.heard, want)
		}
	}
	there.since, there.proved = raft.Since{Term: 8, Unnamed: 1}, []bool{true, false}
	claims := []raft.Claim{{Leading: raft.Leading{ShardID: 4, Term: 5}, Since: there.since}, {Leading: raft.Leading{ShardID: 6, Term: 7}}}
	since, proved, err := l.Prove(t.Context(), claims)
	if since != there.since || !slices.Equal(proved, there.proved) || err != nil || there.heard != fmt.Sprintf("prove %v", claims) {
		t.Errorf("proved %v since %v, %v; asked %q", proved, since, err, there.heard)
	}
}

// A node of an earlier version does not say who asks for numbers.
func TestUnnamedRequestForNumbers(t *testing.T) {
	there := &oneLeader{}
	_, d := systemAt(t, there)
	if _, err := open(d.server.Handle(t.Context(), []byte{methodAsk, 3})); err != nil || there.heard != "ask 3 by {0 0}, voted {0 0}" {
		t.Errorf("asked %q, %v", there.heard, err)
	}
}

func TestSystemErrorsTravel(t *testing.T) {
	odd := errors.New("disk on fire")
	for _, tc := range []struct {
		there, lost         error
		proposed, confirmed error
	}{
		{there: raft.ErrNotLeader, proposed: raft.ErrNotLeader, confirmed: raft.ErrNotLeader},
		{there: fmt.Errorf("%w: no order", raft.ErrNotApplied), proposed: raft.ErrNotApplied, confirmed: raft.ErrNotApplied},
		{there: raft.ErrTooManyRequests, proposed: raft.ErrTooManyRequests, confirmed: raft.ErrTooManyRequests},
		{there: auth.ErrUserNotFound, proposed: auth.ErrUserNotFound, confirmed: auth.ErrUserNotFound},
		{there: system.ErrTooOld, proposed: system.ErrTooOld, confirmed: system.ErrTooOld},
		{there: raft.ErrStopped, proposed: raft.ErrTimeout, confirmed: raft.ErrNotLeader},
		{there: raft.ErrTimeout, proposed: raft.ErrTimeout, confirmed: raft.ErrNotLeader},
		{there: context.Canceled, proposed: raft.ErrTimeout, confirmed: raft.ErrNotLeader},
		{there: fmt.Errorf("propose: %w", context.DeadlineExceeded), proposed: raft.ErrTimeout, confirmed: raft.ErrNotLeader},
		{there: odd, proposed: raft.ErrTimeout, confirmed: failure{odd.Error()}},
		{lost: peer.ErrUnsent, proposed: raft.ErrNotLeader, confirmed: raft.ErrNotLeader},
		{lost: peer.ErrLost, proposed: raft.ErrTimeout, confirmed: raft.ErrNotLeader},
	} {
		l, d := systemAt(t, &oneLeader{err: tc.there})
		d.err = tc.lost
		if _, _, err := l.Propose(t.Context(), 1, nil); !errors.Is(err, tc.proposed) {
			t.Errorf("%v, %v: proposed: %v", tc.there, tc.lost, err)
		}
		if _, err := l.Confirm(t.Context()); !errors.Is(err, tc.confirmed) {
			t.Errorf("%v, %v: confirmed: %v", tc.there, tc.lost, err)
		}
		if _, err := l.Ask(t.Context(), 1, raft.Leading{}, raft.Voted{}); !errors.Is(err, tc.confirmed) {
			t.Errorf("%v, %v: asked: %v", tc.there, tc.lost, err)
		}
	}
	l, _ := systemAt(t, nil)
	if _, err := l.Confirm(t.Context()); !errors.Is(err, raft.ErrNotLeader) {
		t.Errorf("confirmed where nothing is yet: %v", err)
	}
}

// A command whose answer can't be read may have applied.
func TestUnreadableAnswerLeavesTheOutcomeOpen(t *testing.T) {
	for _, answer := range []string{"", "\x00", "\x00\x01", "\x00\x01\x63", "\xc8"} {
		l := &systemLeader{client{mesh: garbling(answer), node: 2, over: t.Context()}}
		if _, _, err := l.Propose(t.Context(), 1, nil); !errors.Is(err, raft.ErrTimeout) {
			t.Errorf("proposed, answered %q: %v", answer, err)
		}
	}
}

// garbling is a mesh whose only answer can't be read.
type garbling string

func (g garbling) Call(context.Context, uint64, []byte) ([]byte, error) { return []byte(g), nil }

// A question that may be repeated ends with the term that it was put in.
func TestSystemCallsEndWithTheTerm(t *testing.T) {
	over, end := context.WithCancel(t.Context())
	l := &systemLeader{client{mesh: silent{}, node: 2, over: over}}
	end()
	if _, err := l.Confirm(t.Context()); !errors.Is(err, raft.ErrNotLeader) {
		t.Errorf("confirmed by a node that says nothing: %v", err)
	}
}

// silent is a mesh that carries nothing.
type silent struct{}

func (silent) Call(ctx context.Context, _ uint64, _ []byte) ([]byte, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}
