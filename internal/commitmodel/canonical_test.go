package commitmodel

import "math/bits"

// canonical makes states equal that nothing can tell apart from now on: it drops what will
// not be looked at again, and counts numbers anew, as they are only compared, and a
// new one is above all others.
func (m *model) canonical(s *state) {
	for i := range m.tries * len(m.wide) {
		if s.ids[i].seq != 0 {
			m.retire(s, i)
		}
	}
	m.lowerShown(s)
	var places [96]place
	all := m.numbered(s, places[:0])
	used := numbers(1)
	for _, at := range all {
		if *at.v >= at.less {
			used |= 1 << (*at.v - at.less)
		}
	}
	for _, at := range all {
		if *at.v >= at.less {
			*at.v = used.rank(*at.v-at.less) + at.less
		}
	}
}

// retire drops what is known of an id and of no use any more.
func (m *model) retire(s *state, i int) {
	me := &s.ids[i]
	_, w := m.of(i)
	if m.open(s, i) {
		return
	}
	me.result, me.refused = noResult, false
	if s.left.doubled > 0 {
		return // what a late Finish or question needs
	}
	me.ok = 0
	late := m.unprepared(i) && (me.decide || s.shards[w.home()].isReady(firstID+item(i))) // a Decide that may commit
	if me.n == 0 && s.shards[w.home()].holds[i] == 0 && me.prepare == 0 && !late {
		me.look = [maxKeys]uint8{}
	}
	if me.n == 0 && me.committed != 0 {
		me.committed = 1 // only that it has matters
	}
}

// lowerShown lowers what was seen of keys to the next number that may still go in: others
// are not compared with it.
func (m *model) lowerShown(s *state) {
	var out numbers
	for p := range s.shards {
		for _, r := range s.shards[p].ready {
			out |= 1 << r.number
		}
	}
	for i := range s.ids {
		if s.ids[i].n != 0 || s.left.doubled > 0 {
			out |= 1 << s.ids[i].committed
		}
	}
	for key, rev := range s.shown {
		s.shown[key] = out.floor(rev)
	}
	for p := range s.shards {
		if sh := &s.shards[p]; sh.promised <= sh.rev {
			sh.promised = 0
		}
	}
}

// place is where a state has a revision, as what is less more than it; below less there is none.
type place struct {
	v    *uint8
	less uint8
}

// numbered appends all places of revisions that are in use.
func (m *model) numbered(s *state, all []place) []place {
	plain := func(v *uint8) {
		if *v > 0 {
			all = append(all, place{v, 0})
		}
	}
	oneMore := func(v *uint8) {
		if *v > 0 {
			all = append(all, place{v, 1})
		}
	}
	plain(&s.counter)
	oneMore(&s.acked)
	ids := m.tries * len(m.wide)
	for p := range s.shards {
		sh := &s.shards[p]
		plain(&sh.rev)
		plain(&sh.promised)
		for i := range ids {
			oneMore(&sh.holds[i])
		}
		for i := range sh.ready {
			plain(&sh.ready[i].number)
		}
	}
	for i := range ids {
		me := &s.ids[i]
		plain(&me.n)
		plain(&me.committed)
		for key := range me.look {
			oneMore(&me.look[key])
		}
	}
	for key := range s.newest {
		plain(&s.newest[key])
		plain(&s.shown[key])
	}
	for r := range m.reads {
		oneMore(&s.reads[r].h)
	}
	return all
}

// numbers is a set of revisions up to 63.
type numbers uint64

// rank returns how many numbers of the set, 0 among them, lie below v.
func (n numbers) rank(v uint8) uint8 {
	return uint8(bits.OnesCount64(uint64(n & (1<<v - 1))))
}

// floor returns the highest number of the set that is not above v, or 0.
func (n numbers) floor(v uint8) uint8 {
	below := uint64(n) & (2<<v - 1)
	if below == 0 {
		return 0
	}
	return uint8(bits.Len64(below) - 1)
}
