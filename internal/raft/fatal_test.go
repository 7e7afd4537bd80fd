package raft

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"

	"github.com/latchkey-db/latchkey/internal/invariant"
)

var errNoSpace = errors.New("no space left on device")

// brokenStore is a log store whose writes end as asked for.
type brokenStore struct {
	raftio.ILogDB

	save func() error
}

func (b brokenStore) SaveRaftState([]raftpb.Update, uint64) error { return b.save() }

// What a storage engine says when it can't write is told to Fatal, with what to do; a
// fault of the code goes on as the panic that it is.
func TestFailedWritesAreFatal(t *testing.T) {
	var none []int
	for _, tc := range []struct {
		name string
		save func() error
		want bool
	}{
		{"the engine panics with the error", func() error { panic(errNoSpace) }, true},
		{"an index out of range", func() error { none[1]++; return nil }, false},
		{"a broken invariant", func() error { invariant.Violated("two leaders"); return nil }, false},
		{"a panic with a text", func() error { panic("not supposed to reach here") }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var told error
			m := &logStore{
				ILogDB: brokenStore{save: tc.save}, doing: "write data log",
				cfg: HostConfig{Observer: unobserved{}, Fatal: func(err error) { told = err }},
			}
			func() {
				defer func() {
					if recover() == nil {
						t.Error("the write returned")
					}
				}()
				_ = m.SaveRaftState(nil, 1)
			}()
			if got := errors.Is(told, errNoSpace); got != tc.want || tc.want && !strings.Contains(told.Error(), errDiskAdvice) {
				t.Errorf("told %v", told)
			}
		})
	}
}

// dragonboat ends with an error alone where it can't apply or save.
func TestRaftsErrorIsFatal(t *testing.T) {
	var told error
	setRaftLogger(slog.New(slog.DiscardHandler), func(err error) { told = err })
	defer setRaftLogger(slog.New(slog.DiscardHandler), nil)
	defer func() {
		if recover() == nil || !errors.Is(told, errNoSpace) {
			t.Errorf("told %v", told)
		}
	}()
	raftLogger{"dragonboat"}.Panicf("%+v", errNoSpace)
}
