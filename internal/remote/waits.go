package remote

import (
	"context"
	"encoding/binary"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/lock/deadlock"
)

// Waits asks a node what clients wait for there. A node of a version that does not know the call
// answers with an error.
func Waits(ctx context.Context, mesh Mesh, node uint64, clients []string) ([]deadlock.Wait, error) {
	request := binary.AppendUvarint([]byte{methodWaits}, uint64(len(clients)))
	for _, client := range clients {
		request = appendBytes(request, []byte(client))
	}
	r, err := ask(ctx, mesh, node, request)
	if err != nil {
		return nil, err
	}
	waits := cutWaits(&r)
	return waits, r.done()
}

// waits answers what clients wait for here.
func (s *Server) waits(_ context.Context, _ byte, r *reader) ([]byte, error) {
	clients := list(r, r.count(1), func() string { return string(r.bytes()) })
	if err := r.done(); err != nil {
		return nil, err
	}
	if s.Waits == nil {
		return nil, raft.ErrStopped
	}
	return appendWaits([]byte{codeOK}, s.Waits(clients)), nil
}

// Each wait and each place is a message of its own, behind whose parts a later version may put
// more.

func appendWaits(dst []byte, waits []deadlock.Wait) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(waits)))
	for i := range waits {
		dst = appendBytes(dst, appendWait(nil, &waits[i]))
	}
	return dst
}

func appendWait(dst []byte, w *deadlock.Wait) []byte {
	dst = appendBytes(binary.AppendVarint(appendBytes(dst, []byte(w.Key)), w.Created), []byte(w.Client))
	dst = binary.AppendVarint(appendBytes(dst, []byte(w.Lock)), int64(w.Room))
	dst = binary.AppendUvarint(dst, uint64(len(w.Calls)))
	for _, call := range w.Calls {
		dst = appendBytes(dst, []byte(call))
	}
	dst = binary.AppendUvarint(dst, uint64(len(w.Before)))
	for _, b := range w.Before {
		place := appendBytes(binary.AppendVarint(appendBytes(nil, []byte(b.Key)), b.Created), []byte(b.Client))
		dst = appendBytes(dst, binary.AppendVarint(place, int64(b.Permits)))
	}
	return dst
}

func cutWaits(r *reader) []deadlock.Wait {
	return list(r, r.count(1), func() deadlock.Wait {
		part := reader{rest: r.bytes()}
		w := deadlock.Wait{Place: cutPlace(&part)}
		w.Client, w.Lock, w.Room = string(part.bytes()), string(part.bytes()), int(part.varint())
		w.Calls = list(&part, part.count(1), func() string { return string(part.bytes()) })
		w.Before = list(&part, part.count(1), func() deadlock.Before { return cutBefore(&part) })
		r.bad = r.bad || part.bad
		return w
	})
}

func cutBefore(r *reader) deadlock.Before {
	part := reader{rest: r.bytes()}
	b := deadlock.Before{Place: cutPlace(&part)}
	b.Client, b.Permits = string(part.bytes()), int(part.varint())
	r.bad = r.bad || part.bad
	return b
}

func cutPlace(r *reader) deadlock.Place {
	return deadlock.Place{Key: string(r.bytes()), Created: r.varint()}
}
