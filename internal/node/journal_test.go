package node

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/latchkey-db/latchkey/auth"
	"github.com/latchkey-db/latchkey/system"
)

// watched is what a journal looks at.
type watched struct {
	mu      sync.Mutex // protects all fields
	state   *system.State
	changed chan struct{}
	led     leading
	over    context.CancelFunc
	until   context.Context
	data    map[uint64]uint64
}

func (w *watched) show(change func(*system.State)) {
	w.mu.Lock()
	next := *w.state
	change(&next)
	old := w.changed
	w.state, w.changed = &next, make(chan struct{})
	close(old)
	w.mu.Unlock()
	synctest.Wait()
}

func (w *watched) lead(l leading) {
	w.mu.Lock()
	end := w.over
	w.led = l
	w.until, w.over = context.WithCancel(context.Background())
	end()
	w.mu.Unlock()
	synctest.Wait()
}

func (w *watched) leadData(leaders map[uint64]uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.data = leaders
}

// look returns a copy of all fields.
func (w *watched) look() *watched {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &watched{state: w.state, changed: w.changed, led: w.led, until: w.until, data: w.data}
}

// A node's log tells of elections, joins, users, roles and alarms, once each.
func TestJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
		nodes := map[uint64]system.NodeRecord{1: {ID: 1, Name: "n1", Instance: "a"}, 2: {ID: 2, Name: "n2", PeerURLs: []string{"http://b"}}}
		w := &watched{
			state: &system.State{Nodes: nodes, Auth: auth.New()}, changed: make(chan struct{}),
			led: leading{1, 2}, data: map[uint64]uint64{2: 1, 3: 2, 4: 0},
		}
		w.until, w.over = context.WithCancel(t.Context())
		j := &journal{
			log: log, self: 1,
			state: func() (*system.State, <-chan struct{}) {
				now := w.look()
				return now.state, now.changed
			},
			leader: func() (leading, context.Context) {
				now := w.look()
				return now.led, now.until
			},
			data: func() map[uint64]uint64 { return w.look().data },
		}
		said := func(want ...string) {
			t.Helper()
			if got := strings.TrimSpace(out.String()); got != strings.Join(want, "\n") {
				t.Errorf("logged\n%s\nwant\n%s", got, strings.Join(want, "\n"))
			}
			out.Reset()
		}
		tick := func() {
			synctest.Wait()
			for range 3 {
				time.Sleep(journalInterval) // of the bubble
			}
			synctest.Wait()
		}
		j.start()
		defer j.close()
		tick()
		said(`level=INFO msg="leader elected" node.name=n1 node.id=1 term=2 here=true`)

		w.lead(leading{0, 3})
		said(`level=WARN msg="leader lost" node.name=n1 node.id=1 term=3`)
		w.lead(leading{0, 4})
		said()
		w.lead(leading{2, 5})
		said(`level=INFO msg="leader elected" node.name=n2 node.id=2 term=5 here=false`)

		w.leadData(map[uint64]uint64{2: 0, 3: 1, 4: 2})
		tick()
		said(`level=INFO msg="leaders of data shards changed" shards="[3 4]" led_here=1`)
		w.leadData(map[uint64]uint64{2: 1, 3: 1, 4: 2})
		tick()
		said()

		w.show(func(s *system.State) {
			s.Nodes = map[uint64]system.NodeRecord{1: nodes[1], 2: {ID: 2, Name: "n2", PeerURLs: []string{"http://b"}, Instance: "b"}}
		})
		said(`level=INFO msg="node joined" node.name=n2 node.id=2 peer_urls=[http://b]`)
		full := system.AlarmRecord{Member: 2, Type: pb.AlarmType_NOSPACE}
		w.show(func(s *system.State) { s.Alarms = []system.AlarmRecord{full} })
		said(`level=WARN msg="alarm raised" alarm=NOSPACE node.name=n2 node.id=2`)
		w.show(func(s *system.State) { s.Alarms = nil })
		said(`level=INFO msg="alarm cleared" alarm=NOSPACE node.name=n2 node.id=2`)

		users := func(rev uint64, on bool, users map[string]*auth.User, roles map[string]*auth.Role) func(*system.State) {
			return func(s *system.State) {
				a := auth.New()
				a.Revision, a.Enabled, a.Users, a.Roles = rev, on, users, roles
				s.Auth = a
			}
		}
		w.show(users(3, true, map[string]*auth.User{"root": {Name: "root", Hash: []byte("secret")}}, map[string]*auth.Role{"r": {Name: "r"}}))
		said(`level=INFO msg="auth switched" on=true`, `level=INFO msg="auth changed" user=root change=added`, `level=INFO msg="auth changed" role=r change=added`)
		// Loaded anew, as after a snapshot, nothing has changed.
		w.show(users(3, true, map[string]*auth.User{"root": {Name: "root", Hash: []byte("secret")}}, map[string]*auth.Role{"r": {Name: "r"}}))
		said()
		w.show(users(5, true, map[string]*auth.User{"root": {Name: "root", Hash: []byte("other")}}, nil))
		said(`level=INFO msg="auth changed" user=root change=changed`, `level=INFO msg="auth changed" role=r change=removed`)
	})
}

// Alarms that stand when the node starts are told of, and nothing else that was before.
func TestJournalBegins(t *testing.T) {
	var out bytes.Buffer
	j := &journal{log: slog.New(slog.NewTextHandler(&out, nil))}
	users := auth.New()
	users.Revision, users.Users = 7, map[string]*auth.User{"u": {Name: "u"}}
	j.logState(&system.State{
		Nodes: map[uint64]system.NodeRecord{1: {ID: 1, Name: "n1", Instance: "a"}}, Auth: users,
		Alarms: []system.AlarmRecord{{Member: 1, Type: pb.AlarmType_CORRUPT}},
	})
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "alarm raised") || !strings.Contains(got, "CORRUPT") {
		t.Errorf("logged %s", got)
	}
}
