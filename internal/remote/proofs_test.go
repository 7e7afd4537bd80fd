package remote

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/system"
)

// proofs says of each call between nodes what its answer rests on. One that rests on nothing
// but what the asked node believes may decide nothing that a client is told.
var proofs = map[byte]string{
	methodSystemPropose: "the log",
	methodSystemConfirm: "a proof of leadership",
	methodAsk:           "a proof of leadership in the term of the numbers, which the question may be",
	methodForward:       "the log, as its origin applies it",
	methodProve:         "a proof of leadership in the term that noted who has numbers",
	methodConfirm:       "a proof of leadership",
	methodPromise:       "a proof of leadership",
	methodRaise:         "the log",
	methodSweepTo:       "the log",
	methodRenew:         "a proof of leadership, or the log, in the term of the clock",
	methodRenewAhead:    "the asked node's belief: who asks takes it for true when its own replica has applied what was proposed in the term later",
	methodTimeToLive:    "a proof of leadership",
	methodAwaitEnded:    "a proof of leadership",
	methodRegister:      "the log",
	methodDrop:          "the log",
	methodFinish:        "the log",
	methodAbort:         "the log",
	methodSettled:       "the log, or that it is committed, which holds for ever",
	methodOpen:          "the asked node alone: it says what it does itself",
	methodPromises:      "promises, which hold for ever once they were proved",
	methodApplied:       "the asked replica alone: who asks hands over a leadership, which Raft decides",
	methodFingerprint:   "the asked replica alone, which it is about",
	methodMissed:        "the asked node's belief: who asks stands for election, which Raft decides",
	methodWaits:         "the asked node, which alone knows its calls: who asks proves the places that it tells of, and asks again",
}

// nobody leads the system shard.
type nobody struct{}

var _ system.Leader = nobody{}

func (nobody) Propose(context.Context, raft.Kind, []byte) (any, uint64, error) {
	return nil, 0, raft.ErrNotLeader
}

func (nobody) Confirm(context.Context) (uint64, error) { return 0, raft.ErrNotLeader }

func (nobody) Ask(context.Context, int, raft.Leading, raft.Voted) (raft.Block, error) {
	return raft.Block{}, raft.ErrNotLeader
}

func (nobody) Prove(context.Context, []raft.Claim) (raft.Since, []bool, error) {
	return raft.Since{}, nil, raft.ErrNotLeader
}

// A call without a row was added without saying what its answer rests on.
func TestWhatAnswersRestOn(t *testing.T) {
	s := &Server{System: nobody{}}
	for method := range 256 {
		_, err := open(s.Handle(t.Context(), []byte{byte(method)}))
		served := err == nil || !strings.Contains(err.Error(), fmt.Sprintf("method %d", method))
		if rests := proofs[byte(method)]; served != (rests != "") {
			t.Errorf("method %d: served %t, its answers rest on %q", method, served, rests)
		}
	}
}
