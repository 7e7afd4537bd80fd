package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/anishathalye/porcupine"
)

// The checkers of this file take what clients saw by its values alone: revisions, headers and
// events play no part. Each knows one way in which transactions over several shards go wrong.

// attempted is a transaction that a client made once: whatever it writes is its own.
type attempted struct {
	id         string
	begin, end int64 // as of an op
	outcome    outcome
}

// snapshot is a read of everything, as far as one checker is concerned.
type snapshot struct {
	begin, end int64
	// stale says that the read need not be of the newest.
	stale bool
	// values are those of the keys.
	values map[string]string
}

// moved is a transfer between accounts.
type moved struct {
	from, to string
	amount   int
}

// bank is what is known of accounts, of which each had the same at first. A transfer writes both
// balances, and a receipt on another shard.
type bank struct {
	accounts []string
	each     int
	receipts map[string]moved // of all transfers that were tried
}

// check finds snapshots in which the balances are not what the receipts make of them. Receipts are
// keys that begin with r.
func (b *bank) check(s snapshot) error {
	if len(s.values) == 0 && s.stale {
		return nil // from before the accounts were opened
	}
	want := make(map[string]int)
	for _, a := range b.accounts {
		want[a] = b.each
	}
	for id := range s.values {
		if m, ok := b.receipts[id]; ok {
			want[m.from] -= m.amount
			want[m.to] += m.amount
		} else if strings.HasPrefix(id, "r") {
			return fmt.Errorf("nobody made the transfer %s", id)
		}
	}
	for _, a := range b.accounts {
		if got, err := strconv.Atoi(s.values[a]); err != nil || got != want[a] {
			return fmt.Errorf("%s has %q, by the receipts %d", a, s.values[a], want[a])
		}
	}
	return nil
}

// inserted is an insertion of a transaction's own keys, which nobody changes later.
type inserted struct {
	attempted
	parts int // how many keys
}

// checkInsertions finds snapshots that show a part of a transaction, that miss what had been
// acknowledged before they began, or before something began that they show (the causal
// reverse), or that show what was refused or not begun. seen are, by snapshot, how many keys of
// each transaction it shows.
func checkInsertions(all []inserted, snapshots []snapshot, seen []map[string]int) error {
	for i, s := range snapshots {
		newest := int64(0) // the last beginning of what the snapshot shows
		if !s.stale {
			newest = s.begin
		}
		for _, t := range all {
			n := seen[i][t.id]
			switch {
			case n == 0:
				continue
			case n != t.parts:
				return fmt.Errorf("%d of %d keys of %s are there in %d-%d", n, t.parts, t.id, s.begin, s.end)
			case t.outcome == refused:
				return fmt.Errorf("%s was refused, and is there in %d-%d", t.id, s.begin, s.end)
			case t.begin > s.end:
				return fmt.Errorf("%s began at %d, and is there in %d-%d", t.id, t.begin, s.begin, s.end)
			}
			newest = max(newest, t.begin)
		}
		for _, t := range all {
			if t.outcome == answered && t.end < newest && seen[i][t.id] == 0 {
				return fmt.Errorf("%s had ended at %d; %d-%d shows what began at %d, and not that", t.id, t.end, s.begin, s.end, newest)
			}
		}
	}
	return nil
}

// checkForks finds two reads of keys, each of which is written once, of which either shows a write that
// the other lacks: they can't have been one after the other.
func checkForks(reads []map[string]bool) error {
	sorted := slices.Clone(reads)
	slices.SortFunc(sorted, func(a, b map[string]bool) int { return len(a) - len(b) })
	for i := 1; i < len(sorted); i++ {
		for key := range sorted[i-1] {
			if !sorted[i][key] {
				return fmt.Errorf("a read shows %v and another %v", sorted[i-1], sorted[i])
			}
		}
	}
	return nil
}

// registersTxn is a transaction on registers: where the one named by guard, if there is one, has
// a value it reads all that are in reads and sets those in writes.
type registersTxn struct {
	reads         []string
	writes        map[string]string
	guard, equals string
}

// registersSeen is what it was answered.
type registersSeen struct {
	unknown   bool
	succeeded bool
	values    map[string]string
}

// registers is some registers as one object; a register that was never set has no value.
func registers() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{""} },
		Step: func(state, input, output any) []any {
			in, ok := input.(registersTxn)
			out, ok2 := output.(registersSeen)
			now, ok3 := state.(string)
			if !ok || !ok2 || !ok3 {
				return nil
			}
			values := parseState(now)
			holds := in.guard == "" || values[in.guard] == in.equals
			if !out.unknown {
				if out.succeeded != holds {
					return nil
				}
				for _, k := range in.reads {
					if holds && out.values[k] != values[k] {
						return nil
					}
				}
			}
			if !holds {
				return []any{now}
			}
			for k, v := range in.writes {
				values[k] = v
			}
			next := []any{printState(values)}
			if out.unknown {
				next = append(next, now)
			}
			return next
		},
		Equal: func(a, b any) bool { return a == b },
	}
	return model.ToModel()
}
