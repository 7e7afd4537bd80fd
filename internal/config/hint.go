package config

import (
	"cmp"
	"strings"
)

// renamed are flags of earlier etcds that became features.
var renamed = map[string]string{
	"experimental-initial-corrupt-check":      "feature-gates=InitialCorruptCheck=true",
	"experimental-compact-hash-check-enabled": "feature-gates=CompactHashCheck=true",
}

// asFlag, asVariable and asKey return how an option is called on the command line, in the
// environment and in a file, or nothing where it can't be set.
func asFlag(o *option) string {
	if o.fileOnly {
		return ""
	}
	return o.name
}

func asVariable(o *option) string {
	if o.flagOnly {
		return ""
	}
	return asFlag(o)
}

func asKey(o *option) string {
	if o.key == noKey {
		return ""
	}
	return cmp.Or(o.key, o.name)
}

// flagHint returns what follows the message that nobody knows a flag: the flag that was
// most likely meant, or nothing.
func (p *parser) flagHint(name string) string {
	return didYouMean("--", p.nearest(strings.TrimLeft(name, "-"), asFlag))
}

// keyHint is flagHint for a key of the file.
func (p *parser) keyHint(key string) string { return didYouMean("", p.nearest(key, asKey)) }

// variableHint is flagHint for an environment variable with a prefix of ours.
func (p *parser) variableHint(prefix, variable string) string {
	name := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(variable, prefix), "_", "-"))
	meant := p.nearest(name, asVariable)
	if option, value, _ := strings.Cut(meant, "="); value != "" {
		return didYouMean("", envName(prefix, option)+"="+value)
	}
	return didYouMean(prefix, strings.TrimPrefix(envName("", meant), prefix))
}

func didYouMean(prefix, meant string) string {
	if meant == "" {
		return ""
	}
	return "; did you mean " + prefix + meant + "?"
}

// nearest returns the setting, as called, whose name is the least typing away from name,
// if that is at most a third of it; of equals the first of the table.
func (p *parser) nearest(name string, called func(*option) string) string {
	if now, ok := renamed[name]; ok {
		return now
	}
	name = strings.TrimPrefix(strings.ToLower(name), "experimental-")
	best, least := "", len(name)/3+1
	for _, o := range p.options {
		known := called(o)
		if known == "" || o.idle == idleGone {
			continue
		}
		if d := typing(name, known); d < least {
			best, least = known, d
		}
	}
	return best
}

// typing returns how many characters must be inserted, deleted, replaced, or exchanged
// with their neighbour to make b of a.
func typing(a, b string) int {
	// rows hold the distances of a's beginnings, the last two and the current, to b's.
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	for j := range rows[1] {
		rows[1][j] = j
	}
	for i := 1; i <= len(a); i++ {
		rows[2][0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d := min(rows[1][j]+1, rows[2][j-1]+1, rows[1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[0][j-2]+1)
			}
			rows[2][j] = d
		}
		rows[0], rows[1], rows[2] = rows[1], rows[2], rows[0]
	}
	return rows[1][len(b)]
}
