package api

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// TestSendFragments checks the pieces against their rules: together they are the
// whole, all but the last are marked, each is below the bound or one event, and
// none could have taken one event more.
func TestSendFragments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole := &pb.WatchResponse{Header: header(rapid.Int64().Draw(t, "rev")), WatchId: rapid.Int64().Draw(t, "id")}
		for i, n := range rapid.SliceOfN(rapid.IntRange(0, 300), 0, 30).Draw(t, "sizes") {
			whole.Events = append(whole.Events, &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte{byte(i)}, Value: make([]byte, n)}})
		}
		bound := rapid.IntRange(1, 2000).Draw(t, "bound")
		var pieces []*pb.WatchResponse
		err := sendFragments(whole, bound, func(r *pb.WatchResponse) error {
			pieces = append(pieces, r)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(whole.Events) < 2 || proto.Size(whole) < bound {
			if len(pieces) != 1 || pieces[0] != whole {
				t.Fatalf("%d pieces of what needs none", len(pieces))
			}
			return
		}
		at := 0
		for i, p := range pieces {
			if p.GetFragment() != (i < len(pieces)-1) {
				t.Fatalf("piece %d of %d has mark %v", i, len(pieces), p.GetFragment())
			}
			if p.GetWatchId() != whole.GetWatchId() || p.GetHeader() != whole.GetHeader() {
				t.Fatalf("piece %d is of another watch", i)
			}
			for _, e := range p.GetEvents() {
				if e != whole.Events[at] {
					t.Fatalf("piece %d breaks the order", i)
				}
				at++
			}
			if len(p.GetEvents()) > 1 && proto.Size(p) >= bound {
				t.Fatalf("piece %d has %d bytes, the bound is %d", i, proto.Size(p), bound)
			}
			if i < len(pieces)-1 {
				p = &pb.WatchResponse{Header: p.Header, WatchId: p.WatchId, Fragment: true, Events: whole.Events[at-len(p.Events) : at+1]}
				if proto.Size(p) < bound {
					t.Fatalf("piece %d could have taken one event more", i)
				}
			}
		}
		if at != len(whole.Events) {
			t.Fatalf("%d of %d events were sent", at, len(whole.Events))
		}
	})
}
