package system

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/internal/keys"
	"github.com/latchkey-db/latchkey/internal/raft"
	"github.com/latchkey-db/latchkey/placement"
)

// kind says what a command of the system shard is. The numbers are in the log for
// ever; payloads are JSON but where it is said. A kind or a field that is not known stops a
// node: it is proposed when the cluster version says that all nodes know it.
type kind raft.Kind

const (
	kindBootstrap kind = 1
	kindNode      kind = 2
	kindAlarm     kind = 3
	// kindUsers carries etcd's InternalRaftRequest with one change of users or roles
	// and who sends it; kindLogin a login.
	kindUsers kind = 4
	kindLogin kind = 5
	// kindLimit to kindOrder concern the order of revisions.
	kindLimit   kind = 6
	kindCompact kind = 7
	kindOrder   kind = 8
	// kindLower carries a limitCommand, too; it came with version lowersLimit.
	kindLower kind = 9
	// kindMembers carries a memberCommand; it came with version changesMembers.
	kindMembers kind = 10
)

// bootstrap makes the cluster. The first that applies wins.
type bootstrap struct {
	Cluster ClusterRecord `json:"cluster"`
	Nodes   []NodeRecord  `json:"nodes"`
	Shards  []ShardRecord `json:"shards"`
	Map     placement.Map `json:"map"`
	// Order is the zero value for a cluster of one shard, which counts by itself.
	Order OrderRecord `json:"order"`
}

// alarm raises or clears one alarm.
type alarm struct {
	AlarmRecord
	Raise bool `json:"raise"`
}

// login makes a simple token of a prefix for a user whose password was right.
type login struct {
	User   string `json:"user"`
	Prefix string `json:"prefix"`
}

// Machine is the state machine of the system shard.
type Machine struct {
	db     *pebble.DB
	prefix []byte
	state  atomic.Pointer[State]
	// changed is closed, and replaced, when state has changed.
	changed atomic.Pointer[chan struct{}]
	// sessions hears of tokens that begin and end; nil where nobody listens.
	sessions auth.Sessions
}

var _ raft.Machine = (*Machine)(nil)

// Open loads the state of the system shard's replica whose keys begin with
// prefix.
func Open(db *pebble.DB, prefix []byte) (*Machine, error) {
	m := &Machine{db: db, prefix: prefix}
	first := make(chan struct{})
	m.changed.Store(&first)
	if err := m.Reload(); err != nil {
		return nil, err
	}
	return m, nil
}

// follow makes sessions hear of the tokens that the commands from now on begin and
// end. No command may be applied meanwhile.
func (m *Machine) follow(sessions auth.Sessions) { m.sessions = sessions }

// State returns the newest state. It must not be changed.
func (m *Machine) State() *State { return m.state.Load() }

// show makes s the state that readers see.
func (m *Machine) show(s *State) {
	m.state.Store(s)
	next := make(chan struct{})
	close(*m.changed.Swap(&next))
}

// BeginReload does nothing: published states stay valid.
func (m *Machine) BeginReload() {}

// Reload takes over what Pebble holds. Of the tokens that began and ended in between
// nothing is written down, so that all end, as with a new process: clients log in again.
func (m *Machine) Reload() error {
	s, err := load(m.db, m.prefix)
	if err != nil {
		return fmt.Errorf("load system state: %w", err)
	}
	if m.sessions != nil {
		m.sessions.EndAll()
	}
	m.show(s)
	return nil
}

// Apply starts a run of commands.
func (m *Machine) Apply(b *pebble.Batch) raft.Run {
	return &run{m: m, out: records{b: b, prefix: m.prefix}}
}

// run applies commands to a copy of the state.
type run struct {
	m   *Machine
	out records
	// next is the state so far, nil while nothing has changed.
	next *State
	// tokens are what sessions will hear, in order, and ends those of them that void
	// tokens.
	tokens, ends []func(auth.Sessions)
}

func (r *run) current() *State {
	if r.next != nil {
		return r.next
	}
	return r.m.State()
}

// change returns the state to be changed.
func (r *run) change() *State {
	if r.next == nil {
		r.next = r.m.State().clone()
	}
	return r.next
}

// Command applies one command. Of these, the system shard rejects only changes of
// users and logins: any other command that no longer fits changes nothing, and its
// result says so.
func (r *run) Command(c raft.Command, _ bool) (result any, rejected, failed error) {
	switch kind(c.Kind) {
	case kindBootstrap:
		var p bootstrap
		if err := decode(c.Payload, &p); err != nil {
			return nil, nil, fmt.Errorf("decode bootstrap: %w", err)
		}
		return r.bootstrap(p), nil, r.out.err
	case kindNode:
		var p NodeRecord
		if err := decode(c.Payload, &p); err != nil {
			return nil, nil, fmt.Errorf("decode node: %w", err)
		}
		known, err := r.node(p)
		return known, nil, errors.Join(err, r.out.err)
	case kindMembers:
		var p memberCommand
		if err := decode(c.Payload, &p); err != nil {
			return nil, nil, fmt.Errorf("decode change of members: %w", err)
		}
		reason, err := r.members(p)
		return reason, nil, errors.Join(err, r.out.err)
	case kindAlarm:
		var p alarm
		if err := decode(c.Payload, &p); err != nil {
			return nil, nil, fmt.Errorf("decode alarm: %w", err)
		}
		return r.alarm(p), nil, r.out.err
	case kindLimit:
		return nil, nil, carried(r, c, r.limit)
	case kindLower:
		return nil, nil, carried(r, c, r.lower)
	case kindCompact:
		var p compactCommand
		if err := decode(c.Payload, &p); err != nil {
			return nil, nil, fmt.Errorf("decode compaction: %w", err)
		}
		return nil, r.compact(p), r.out.err
	case kindOrder:
		return nil, nil, carried(r, c, r.order)
	case kindUsers:
		p := &pb.InternalRaftRequest{}
		if err := raft.DecodeRequest(c.Payload, p); err != nil {
			return nil, nil, err
		}
		if rejected = r.users(p); errors.Is(rejected, keys.ErrNewer) {
			return nil, nil, rejected
		}
		return nil, rejected, r.out.err
	case kindLogin:
		var p login
		if err := decode(c.Payload, &p); err != nil {
			return nil, nil, fmt.Errorf("decode login: %w", err)
		}
		token, rejected := r.login(p)
		return token, rejected, r.out.err
	default:
		return nil, nil, fmt.Errorf("command of kind %d: %w", c.Kind, keys.ErrNewer)
	}
}

// carried applies what a command carries, where that has no result.
func carried[Payload any](r *run, c raft.Command, apply func(Payload)) error {
	var p Payload
	if err := decode(c.Payload, &p); err != nil {
		return fmt.Errorf("decode command of kind %d: %w", c.Kind, err)
	}
	apply(p)
	return r.out.err
}

// bootstrap reports whether p made the cluster.
func (r *run) bootstrap(p bootstrap) bool {
	if r.current().Cluster.ID != 0 {
		return false
	}
	s := r.change()
	s.Cluster = p.Cluster
	r.out.set(clusterKey(), p.Cluster)
	for _, n := range p.Nodes {
		s.Nodes[n.ID] = n
		r.out.set(nodeKey(n.ID), n)
	}
	for _, h := range p.Shards {
		s.Shards[h.ID] = h
		r.out.set(shardKey(h.ID), h)
	}
	s.deriveSystem()
	s.Order = p.Order
	r.out.set(orderKey(), s.Order)
	s.Map = p.Map
	for _, piece := range p.Map {
		r.out.set(pieceKey(piece.Start), piece)
	}
	return true
}

// node takes over what a node says of itself, its name, client URLs, version and instance; it reports whether
// the node is known, and known with that data directory. Where it is reached, and whether it votes, others say:
// it may have been started with an old view.
func (r *run) node(p NodeRecord) (bool, error) {
	known, ok := r.current().Nodes[p.ID]
	if !ok || known.Instance != "" && known.Instance != p.Instance {
		return false, nil
	}
	s := r.change()
	known.Name, known.ClientURLs, known.Version, known.Instance = p.Name, p.ClientURLs, p.Version, p.Instance
	s.Nodes[p.ID] = known
	r.out.set(nodeKey(p.ID), known)
	return true, r.raiseVersion(s)
}

// alarm reports whether the alarm was raised before.
func (r *run) alarm(p alarm) bool {
	at, found := slices.BinarySearchFunc(r.current().Alarms, p.AlarmRecord, compareAlarms)
	switch {
	case p.Raise && !found:
		s := r.change()
		s.Alarms = slices.Insert(s.Alarms, at, p.AlarmRecord)
		r.out.set(alarmKey(p.AlarmRecord), p.AlarmRecord)
	case !p.Raise && found:
		s := r.change()
		s.Alarms = slices.Delete(s.Alarms, at, at+1)
		r.out.delete(alarmKey(p.AlarmRecord))
	}
	return found
}

// users changes users and roles, or returns why not.
func (r *run) users(p *pb.InternalRaftRequest) error {
	now := r.current().Auth
	next, effect, err := now.Apply(p)
	if err != nil || next == now {
		return err
	}
	r.change().Auth = next
	r.out.set(settingsKey(), next.Settings)
	for _, name := range effect.Users {
		if u := next.Users[name]; u != nil {
			r.out.set(userKey(name), u)
		} else {
			r.out.delete(userKey(name))
		}
	}
	for _, name := range effect.Roles {
		if role := next.Roles[name]; role != nil {
			r.out.set(roleKey(name), role)
		} else {
			r.out.delete(roleKey(name))
		}
	}
	if effect.Ended != "" {
		r.end(func(s auth.Sessions) { s.End(effect.Ended) })
	}
	if effect.EndAll {
		r.end(auth.Sessions.EndAll)
	}
	return nil
}

// end notes that tokens are void.
func (r *run) end(tell func(auth.Sessions)) {
	r.ends, r.tokens = append(r.ends, tell), append(r.tokens, tell)
}

// login returns the token, or why there is none.
func (r *run) login(p login) (token string, rejected error) {
	next, token, err := r.current().Auth.Login(p.User, p.Prefix)
	if err != nil {
		return "", err
	}
	r.change().Auth = next
	r.out.set(settingsKey(), next.Settings)
	r.tokens = append(r.tokens, func(s auth.Sessions) { s.Begin(token, p.User) })
	return token, nil
}

// Begin does nothing.
func (r *run) Begin() error { return nil }

// Finish does nothing: every change is in the batch already.
func (r *run) Finish() error { return r.out.err }

// Publish tells of the tokens that end, shows the new state, and tells of the others: by
// no token that the state voids is anybody let in under it, and none is known to whom it
// belongs before its user is. A token that began and ended in the run ends again.
func (r *run) Publish() {
	r.tell(r.ends)
	if r.next != nil {
		r.m.show(r.next)
	}
	r.tell(r.tokens)
}

func (r *run) tell(of []func(auth.Sessions)) {
	if r.m.sessions == nil {
		return
	}
	for _, tell := range of {
		tell(r.m.sessions)
	}
}
