package system

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/placement"
)

// The system shard's records lie below its replica's prefix under 's' and a
// letter each; values are JSON.
const (
	stateTag   byte = 's'
	clusterTag byte = 'c'
	nodeTag    byte = 'n'
	shardTag   byte = 'h'
	pieceTag   byte = 'p'
	alarmTag   byte = 'a'
	orderTag   byte = 'o'
	// systemTag and removedTag came with version changesMembers.
	systemTag  byte = 'y'
	removedTag byte = 'x'

	settingsTag byte = 'e'
	roleTag     byte = 'r'
	userTag     byte = 'u'
)

func clusterKey() []byte { return []byte{stateTag, clusterTag} }

func nodeKey(id uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{stateTag, nodeTag}, id)
}

func shardKey(id uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{stateTag, shardTag}, id)
}

func systemKey() []byte { return []byte{stateTag, systemTag} }

func removedKey(node uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{stateTag, removedTag}, node)
}

func pieceKey(start []byte) []byte { return append([]byte{stateTag, pieceTag}, start...) }

func alarmKey(a AlarmRecord) []byte {
	k := binary.BigEndian.AppendUint64([]byte{stateTag, alarmTag}, a.Member)
	return binary.BigEndian.AppendUint32(k, uint32(a.Type))
}

func orderKey() []byte { return []byte{stateTag, orderTag} }

func settingsKey() []byte { return []byte{stateTag, settingsTag} }

func userKey(name string) []byte { return append([]byte{stateTag, userTag}, name...) }

func roleKey(name string) []byte { return append([]byte{stateTag, roleTag}, name...) }

// records writes changes into a batch and keeps the first error.
type records struct {
	b      *pebble.Batch
	prefix []byte
	err    error
}

func (r *records) set(key []byte, value any) {
	v, err := json.Marshal(value)
	if err == nil {
		err = r.b.Set(append(slices.Clone(r.prefix), key...), v, nil)
	}
	r.err = errors.Join(r.err, err)
}

func (r *records) delete(key []byte) {
	r.err = errors.Join(r.err, r.b.Delete(append(slices.Clone(r.prefix), key...), nil))
}

// load reads all records.
func load(db *pebble.DB, prefix []byte) (s *State, err error) {
	low := append(slices.Clone(prefix), stateTag)
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: low, UpperBound: append(slices.Clone(prefix), stateTag+1)})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	s = &State{
		Nodes: make(map[uint64]NodeRecord), Removed: make(map[uint64]RemovedRecord), Shards: make(map[uint64]ShardRecord),
		Order: OrderRecord{Compacted: -1}, Auth: auth.New(),
	}
	for it.First(); it.Valid(); it.Next() {
		if err := s.take(it.Key()[len(low):], it.Value()); err != nil {
			return nil, fmt.Errorf("record %q: %w", it.Key()[len(prefix):], err)
		}
	}
	s.Auth.Index()
	s.deriveSystem()
	return s, errors.Join(s.checkVersion(), it.Error())
}

// deriveSystem fills in the record of the system shard, which is not written before the members change:
// until then it has the same members as any other shard.
func (s *State) deriveSystem() {
	for _, h := range s.Shards {
		if s.System.Replicas == nil {
			s.System = ShardRecord{ID: placement.SystemShard, Replicas: h.Replicas, NextReplica: h.NextReplica}
		}
	}
}

// decode reads JSON of a record or a command. It returns keys.ErrNewer if there are fields
// that this version does not know: with them skipped this replica would become another than
// those of newer nodes.
func decode(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return err
	}
	strict := json.NewDecoder(bytes.NewReader(b))
	strict.DisallowUnknownFields()
	if err := strict.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", keys.ErrNewer, err)
	}
	return nil
}

// take adds one record, whose key is given from its letter on. Records come in
// key order, so that the map and the alarms end up sorted.
func (s *State) take(key, value []byte) error {
	if len(key) == 0 {
		return keys.ErrNewer
	}
	switch key[0] {
	case clusterTag:
		return decode(value, &s.Cluster)
	case nodeTag:
		var n NodeRecord
		err := decode(value, &n)
		s.Nodes[n.ID] = n
		return err
	case shardTag:
		var h ShardRecord
		err := decode(value, &h)
		s.Shards[h.ID] = h
		return err
	case pieceTag:
		var p placement.Piece
		err := decode(value, &p)
		s.Map = append(s.Map, p)
		return err
	case alarmTag:
		var a AlarmRecord
		err := decode(value, &a)
		s.Alarms = append(s.Alarms, a)
		return err
	case systemTag:
		return decode(value, &s.System)
	case removedTag:
		var gone RemovedRecord
		err := decode(value, &gone)
		s.Removed[gone.ID] = gone
		return err
	case orderTag:
		return decode(value, &s.Order)
	case settingsTag:
		return decode(value, &s.Auth.Settings)
	case userTag:
		u := &auth.User{}
		err := decode(value, u)
		s.Auth.Users[u.Name] = u
		return err
	case roleTag:
		role := &auth.Role{}
		err := decode(value, role)
		s.Auth.Roles[role.Name] = role
		return err
	default:
		return keys.ErrNewer
	}
}
