package remote

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/lease"
	"github.com/latchkey-db/latchkey/lock/deadlock"
	"github.com/latchkey-db/latchkey/shard"
)

func TestErrorsKeepTheirNames(t *testing.T) {
	for _, k := range known {
		for _, err := range []error{k.err, fmt.Errorf("shard 7: %w", k.err)} {
			_, got := open(failedAnswer(err))
			if !errors.Is(got, k.err) {
				t.Errorf("%v came as %v", err, got)
			}
		}
	}
	_, got := open(failedAnswer(errors.New("disk on fire")))
	if got == nil || got.Error() != "disk on fire" {
		t.Errorf("another error came as %v", got)
	}
	if _, err := open(nil); err == nil {
		t.Error("an answer of no bytes was taken")
	}
}

func TestLifeIsReadAsWritten(t *testing.T) {
	for _, life := range []shard.LeaseLife{
		{Record: lease.Record{ID: -7, TTL: 60, Incarnation: 1 << 40, Aging: time.Second, Ending: true}, Remaining: -time.Millisecond},
		{Record: lease.Record{ID: 1 << 62}, Keys: [][]byte{}, Holders: []uint64{3}},
		{Keys: [][]byte{[]byte("a"), {}}, Holders: []uint64{3, 1 << 63}},
	} {
		r := reader{rest: appendLife(nil, &life)}
		got := cutLife(&r)
		if err := r.done(); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(life, got); d != "" {
			t.Errorf("read back differently: %s", d)
		}
	}
}

func TestSpansAreReadAsWritten(t *testing.T) {
	for _, spans := range [][]keys.Span{nil, {}, {{}}, {keys.Point([]byte("k")), {Start: []byte("a")}}} {
		r := reader{rest: appendSpans(nil, spans)}
		got := r.spans()
		if err := r.done(); err != nil {
			t.Fatal(err)
		}
		if (got == nil) != (spans == nil) || len(got) != len(spans) {
			t.Errorf("%v was read as %v", spans, got)
		}
		for i := range got {
			if !got[i].Equal(spans[i]) {
				t.Errorf("%v was read as %v", spans, got)
			}
		}
	}
}

// A count that is a lie allocates nothing to speak of.
func TestCountsAreNotBelieved(t *testing.T) {
	const size = 4 << 20
	// The first thing can't be read, so that no other is.
	lie := append(binary.AppendUvarint(nil, size/2), bytes.Repeat([]byte{0xff}, size)...)
	life := append(appendLife(nil, &shard.LeaseLife{Remaining: 1})[:6], lie...)
	for name, read := range map[string]func(){
		"spans": func() {
			r := reader{rest: lie}
			_ = r.spans()
			if r.done() == nil {
				t.Error("spans were read")
			}
		},
		"a lease's life": func() {
			r := reader{rest: life}
			_ = cutLife(&r)
			if r.done() == nil {
				t.Error("a lease's life was read")
			}
		},
		"waits": func() {
			r := reader{rest: lie}
			_ = cutWaits(&r)
			if r.done() == nil {
				t.Error("waits were read")
			}
		},
		"clients": func() {
			if _, err := (&Server{}).waits(t.Context(), methodWaits, &reader{rest: lie}); err == nil {
				t.Error("clients were read")
			}
		},
		"leases": func() {
			r := reader{rest: lie}
			_ = dataCalls[methodDrop](new(shard.Data), &r)
			if r.done() == nil {
				t.Error("leases were read")
			}
		},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		read()
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
			t.Errorf("%s: a message of %d bytes took %d", name, size, took)
		}
	}
}

// No request of another node takes this one down, whatever its bytes.
func FuzzHandle(f *testing.F) {
	f.Add([]byte{methodPromises, 2, 1, 4})
	f.Add([]byte{methodWaits, 1, 4, 200, 1, 1, 1, 1, 1, 1})
	for method := range byte(32) {
		f.Add([]byte{method, 2, 4, 200, 1, 1, 1, 1, 1, 1})
		f.Add([]byte{method, 2, 255, 255, 255, 255, 255, 255, 255, 255, 127})
	}
	f.Fuzz(func(t *testing.T, request []byte) {
		r := reader{rest: request}
		_ = r.spans()
		r = reader{rest: request}
		_ = cutLife(&r)
		r = reader{rest: request}
		_ = cutWaits(&r)
		for _, call := range dataCalls {
			r := reader{rest: request}
			_ = call(new(shard.Data), &r)
		}
		answer, err := open((&Server{}).Handle(t.Context(), request))
		// Promises are those of the shards that are there: none.
		if none := len(request) > 0 && request[0] == methodPromises && bytes.Equal(answer, []byte{0}); err == nil && !none {
			t.Errorf("%x was answered without a shard", request)
		}
	})
}

// A node is asked whether it misses another; one that can't say so is taken for none.
func TestMissed(t *testing.T) {
	for _, c := range []struct {
		missed func(node uint64) bool
		about  uint64
		want   bool
		failed bool
	}{
		{missed: func(node uint64) bool { return node == 1<<63 }, about: 1 << 63, want: true},
		{missed: func(node uint64) bool { return node == 1<<63 }, about: 7},
		{about: 7, failed: true},
	} {
		got, err := Missed(t.Context(), &direct{server: &Server{Missed: c.missed}}, 2, c.about)
		if got != c.want || (err != nil) != c.failed {
			t.Errorf("missed %x: %v, %v", c.about, got, err)
		}
	}
	if got, err := Missed(t.Context(), &direct{err: errors.New("lost")}, 2, 7); got || err == nil {
		t.Errorf("lost on the way: %v, %v", got, err)
	}
}

// What a later version has added behind a message is left alone.
func TestMessagesOfALaterVersion(t *testing.T) {
	s := &Server{Missed: func(node uint64) bool { return node == 7 }}
	request := binary.AppendUvarint([]byte{methodMissed}, 7)
	for _, more := range []string{"", "\x05\x00news"} {
		answer := s.Handle(t.Context(), append(request[:len(request):len(request)], more...))
		result, err := open(append(answer, more...))
		if err != nil {
			t.Fatalf("with %q: %v", more, err)
		}
		r := reader{rest: result}
		if missed := r.bool(); !missed || r.done() != nil {
			t.Errorf("with %q: %t, %v", more, missed, r.done())
		}
	}
}

// A node is asked what clients wait for, and what it tells is read as it was told. One that does not
// serve clients, or does not know the question, answers with an error.
func TestWaits(t *testing.T) {
	told := map[string][]deadlock.Wait{
		"a": {
			{Place: deadlock.Place{Key: "l/1", Created: 1 << 40}, Client: "a", Lock: "l", Room: 3, Calls: []string{"x", "y"}, Before: []deadlock.Before{
				{Place: deadlock.Place{Key: "l/2", Created: 7}, Client: "b", Permits: 2}, {Place: deadlock.Place{Key: "l/\xff"}, Client: "c"},
			}},
			{Client: "a", Calls: []string{}, Before: []deadlock.Before{}},
		},
	}
	served := &Server{Waits: func(clients []string) (all []deadlock.Wait) {
		for _, client := range clients {
			all = append(all, told[client]...)
		}
		return all
	}}
	got, err := Waits(t.Context(), &direct{server: served}, 2, []string{"", "b", "a"})
	if d := cmp.Diff(told["a"], got); d != "" || err != nil {
		t.Errorf("%v: read back differently: %s", err, d)
	}
	if got, err := Waits(t.Context(), &direct{server: served}, 2, []string{"b"}); len(got) > 0 || err != nil {
		t.Errorf("of a client that does not wait: %v, %v", got, err)
	}
	if _, err := Waits(t.Context(), &direct{server: &Server{}}, 2, []string{"a"}); err == nil {
		t.Error("told by a node that serves nobody")
	}
	// A later version may say more of waits and places.
	more := appendBytes(nil, append(appendWait(nil, &told["a"][0]), "more"...))
	r := reader{rest: append(binary.AppendUvarint(nil, 1), more...)}
	if d := cmp.Diff(told["a"][:1], cutWaits(&r)); d != "" || r.done() != nil {
		t.Errorf("%v: with more read differently: %s", r.done(), d)
	}
}
