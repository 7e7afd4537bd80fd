package raft

import "slices"

// A command that announces a number takes none: its sender asks for one when the command has
// applied, which is above all that was handed out before. It carries the highest that its leader had used
// or promised, which the announced one is above.
//
//   - It enters the table of what promises wait for with its batch, as if it had the next number: another
//     node may apply it, and the number be used, before the leader applies it and answers for its state.
//   - The oracle must have noted the leader's term before, as it does when it hands out numbers: else
//     a leader of before might still, by the oracle's word (together.go), promise the number
//     that is announced, which another shard asks for. So what comes before the oracle has answered in the
//     term asks for a number to carry.
//   - Such commands take turns as those with numbers do (turns.go), or go with a batch that goes anyhow.

// count returns how many numbers of a request a call takes, if it comes to that.
func (c *call) count() int {
	if c.Announces {
		return 1
	}
	return c.Numbers
}

// announcesLocked reports whether commands that announce numbers wait for a turn. r.mu must be held.
func (r *Replica) announcesLocked() bool {
	return r.serving != 0 && !r.held && len(r.announcing) > 0 && r.announced == nil
}

// takeAnnouncingLocked takes the commands that announce numbers, as far as there is room. r.mu must be held.
func (r *Replica) takeAnnouncingLocked(f *flight, room *room) {
	n := 0
	for n < len(r.announcing) && room.take(r.announcing[n]) {
		n++
	}
	if n == 0 {
		return
	}
	g := r.announced
	if g == nil {
		g = &group{}
	}
	floor := max(r.promised, r.used)
	g.calls, g.first, g.compacted = slices.Clone(r.announcing[:n]), floor+1, -1
	for _, c := range g.calls {
		c.number = floor
	}
	r.announcing, r.announced = slices.Delete(r.announcing, 0, n), nil
	f.calls, f.groups = append(f.calls, g.calls...), append(f.groups, g)
}
