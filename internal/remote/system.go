package remote

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/system"
)

// The methods of the system shard; those of data shards begin at 16. The numbers are
// spoken between versions, so that they never change.
const (
	methodSystemPropose byte = 1
	methodSystemConfirm byte = 2
	methodAsk           byte = 3
	methodProve         byte = 4

	firstDataMethod byte = 16
)

// What the result of a command of the system shard is.
const (
	resultNone  uint64 = 0
	resultFalse uint64 = 1
	resultTrue  uint64 = 2
	resultText  uint64 = 3
)

// SystemLeader returns the leader of the system shard on another node as this node's
// replica knows it, nil if there is none.
func SystemLeader(mesh Mesh, c *system.Cluster) system.Leader {
	known, over := c.Replica().LeaderOfTerm()
	node := c.NodeOf(known.ReplicaID)
	if node == 0 || node == c.MemberID() {
		return nil
	}
	return &systemLeader{client{mesh: mesh, node: node, over: over}}
}

// systemLeader is the system shard's leader on another node.
type systemLeader struct{ client }

var _ system.Leader = (*systemLeader)(nil)

// Propose puts a command through the leader's log.
func (l *systemLeader) Propose(ctx context.Context, kind raft.Kind, payload []byte) (result any, index uint64, err error) {
	request := append([]byte{methodSystemPropose, byte(kind)}, payload...)
	r, err := l.roundTrip(ctx, false, request)
	if err != nil {
		return nil, 0, err
	}
	index = r.uvarint()
	result = cutResult(&r)
	if err := r.done(); err != nil {
		return nil, 0, openOutcome(err)
	}
	return result, index, nil
}

// Confirm proves that the leader leads.
func (l *systemLeader) Confirm(ctx context.Context) (index uint64, err error) {
	r, err := l.roundTrip(ctx, true, []byte{methodSystemConfirm})
	if err != nil {
		return 0, err
	}
	index = r.uvarint()
	return index, r.done()
}

// Ask asks the oracle. An earlier version named no leadership, and leaves the name alone.
func (l *systemLeader) Ask(ctx context.Context, count int, by raft.Leading, voted raft.Voted) (b raft.Block, err error) {
	request := binary.AppendUvarint([]byte{methodAsk}, uint64(count))
	if count > 0 || voted != (raft.Voted{}) {
		request = appendLeading(request, by)
	}
	if voted != (raft.Voted{}) {
		request = binary.AppendUvarint(binary.AppendUvarint(request, voted.ReplicaID), voted.Term)
	}
	r, err := l.roundTrip(ctx, true, request)
	if err != nil {
		return b, err
	}
	b.First, b.Newest, b.Compacted = r.varint(), r.varint(), r.varint()
	return b, r.done()
}

// Prove asks the oracle about claims.
func (l *systemLeader) Prove(ctx context.Context, claims []raft.Claim) (since raft.Since, proved []bool, err error) {
	request := binary.AppendUvarint([]byte{methodProve}, uint64(len(claims)))
	for _, c := range claims {
		request = appendSince(appendLeading(request, c.Leading), c.Since)
	}
	r, err := l.roundTrip(ctx, true, request)
	if err != nil {
		return since, nil, err
	}
	since = r.since()
	proved = list(&r, r.count(1), r.bool)
	return since, proved, r.done()
}

func appendLeading(dst []byte, l raft.Leading) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(dst, l.ShardID), l.Term)
}

func (r *reader) leading() raft.Leading {
	return raft.Leading{ShardID: r.uvarint(), Term: r.uvarint()}
}

func appendSince(dst []byte, s raft.Since) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(dst, s.Term), s.Unnamed)
}

func (r *reader) since() raft.Since {
	return raft.Since{Term: r.uvarint(), Unnamed: r.uvarint()}
}

// maxAsked bounds the numbers that one question may ask for.
const maxAsked = 1 << 20

// system answers a call for the system shard.
func (s *Server) system(ctx context.Context, method byte, r *reader) ([]byte, error) {
	if s.System == nil {
		return nil, raft.ErrNotLeader
	}
	dst := []byte{codeOK}
	switch method {
	case methodSystemPropose:
		if len(r.rest) == 0 {
			return nil, errMalformed
		}
		result, index, err := s.System.Propose(ctx, raft.Kind(r.rest[0]), r.rest[1:])
		if err != nil {
			return nil, err
		}
		return appendResult(binary.AppendUvarint(dst, index), result)
	case methodSystemConfirm:
		if err := r.done(); err != nil {
			return nil, err
		}
		return indexed(s.System.Confirm)(ctx, dst)
	case methodAsk:
		count := r.uvarint()
		var by raft.Leading
		if len(r.rest) > 0 {
			by = r.leading()
		}
		var voted raft.Voted
		if len(r.rest) > 0 {
			voted = raft.Voted{ReplicaID: r.uvarint(), Term: r.uvarint()}
		}
		if err := r.done(); err != nil || count > maxAsked {
			return nil, errMalformed
		}
		b, err := s.System.Ask(ctx, int(count), by, voted)
		if err != nil {
			return nil, err
		}
		return binary.AppendVarint(binary.AppendVarint(binary.AppendVarint(dst, b.First), b.Newest), b.Compacted), nil
	case methodProve:
		claims := list(r, r.count(4), func() raft.Claim { return raft.Claim{Leading: r.leading(), Since: r.since()} })
		if err := r.done(); err != nil {
			return nil, err
		}
		since, proved, err := s.System.Prove(ctx, claims)
		if err != nil {
			return nil, err
		}
		dst = binary.AppendUvarint(appendSince(dst, since), uint64(len(proved)))
		for _, ok := range proved {
			dst = appendBool(dst, ok)
		}
		return dst, nil
	}
	return nil, fmt.Errorf("%w: method %d", errMalformed, method)
}

// appendResult writes the result of a command, which is a bool, a text or nothing.
func appendResult(dst []byte, result any) ([]byte, error) {
	switch v := result.(type) {
	case nil:
		return binary.AppendUvarint(dst, resultNone), nil
	case bool:
		if v {
			return binary.AppendUvarint(dst, resultTrue), nil
		}
		return binary.AppendUvarint(dst, resultFalse), nil
	case string:
		return appendBytes(binary.AppendUvarint(dst, resultText), []byte(v)), nil
	}
	return nil, fmt.Errorf("%w: a result of type %T", errMalformed, result)
}

func cutResult(r *reader) any {
	switch r.uvarint() {
	case resultNone:
		return nil
	case resultFalse:
		return false
	case resultTrue:
		return true
	case resultText:
		return string(r.bytes())
	}
	r.bad = true
	return nil
}
