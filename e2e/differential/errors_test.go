package differential

import (
	"context"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

// refusal is a request that both servers must refuse alike, with the code and text
// of a row.
type refusal struct {
	name string
	call func(ctx context.Context, s *server) error
	code codes.Code
	text string
}

// stage is a state of a server and what it refuses in it.
type stage struct {
	// prepare brings a server from the stage before into this one; it may be nil.
	prepare func(t *testing.T, s *server)
	// refusals are requests with one fault, and with two, of which the first by
	// etcd's order of judging counts.
	refusals []refusal
}

// rowOf returns the row of a refusal, or nil.
func rowOf(r refusal) *errorRow {
	i := slices.IndexFunc(errorRows, func(row errorRow) bool { return row.code == r.code && row.text == r.text })
	if i < 0 {
		return nil
	}
	return &errorRows[i]
}

// TestRefusedAlike meets every error of etcd on a real etcd and on Latchkey, but
// those of which the table says why not.
func TestRefusedAlike(t *testing.T) {
	tokens := harness.JWTFlag(t)
	servers := []*server{
		startEtcd(t, "etcd", func(c *embed.Config) {
			c.AuthToken, c.BcryptCost = strings.TrimPrefix(tokens, "--auth-token="), 4
			// Its gateway dials the address that it is told to listen on.
			c.ListenClientUrls = urls(t, "http://"+harness.FreeAddr(t))
		}),
		startLatchkey(t, tokens, "--bcrypt-cost=4"),
	}
	met := make(map[*errorRow]bool)
	for _, stage := range slices.Concat(keyStages(), userStages()) {
		for _, s := range servers {
			if stage.prepare != nil {
				stage.prepare(t, s)
			}
		}
		for _, r := range stage.refusals {
			row := rowOf(r)
			if row == nil {
				t.Fatalf("%s: no row has %v: %q", r.name, r.code, r.text)
			}
			met[row] = true
			t.Run(row.name+" by "+r.name, func(t *testing.T) { refuse(t, servers, r) })
		}
		compareStores(t, servers)
	}
	for i := range errorRows {
		row := &errorRows[i]
		if met[row] {
			if row.unseen != "" {
				t.Errorf("%s is met, although %s", row.name, row.unseen)
			}
			continue
		}
		t.Run(row.name+" by nothing", func(t *testing.T) {
			if row.unseen == "" {
				t.Error("no refusal meets it")
			}
			// At least it is what etcd's clients know.
			if got := rpctypes.ErrorDesc(rpctypes.Error(status.Error(row.code, row.text))); got != row.text {
				t.Errorf("clients read %q", got)
			}
		})
	}
}

// refuse makes a request on all servers.
func refuse(t *testing.T, servers []*server, r refusal) {
	t.Helper()
	for _, s := range servers {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		got := status.Convert(r.call(ctx, s))
		cancel()
		text := got.Message()
		if got.Code() == codes.DeadlineExceeded && strings.Contains(text, "RST_STREAM") {
			// Both sides have the deadline, and the server ended the stream before the client looked.
			text = context.DeadlineExceeded.Error()
		}
		if got.Code() != r.code || text != r.text || len(got.Details()) > 0 {
			t.Errorf("%s: %v: %q, want %v: %q", s.name, got.Code(), got.Message(), r.code, r.text)
		}
	}
}

// compareStores checks that what was refused has left no trace, or the same on both.
func compareStores(t *testing.T, servers []*server) {
	t.Helper()
	var stores []proto.Message
	for _, s := range servers {
		resp, err := s.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}, grpc.WaitForReady(true))
		if code := status.Code(err); code == codes.InvalidArgument {
			return // who calls is asked by now
		}
		if err != nil {
			t.Fatal(err)
		}
		resp.Header = &pb.ResponseHeader{Revision: resp.GetHeader().GetRevision()}
		stores = append(stores, resp)
	}
	if text := diff(stores[0], stores[1]); text != "" {
		t.Errorf("after refusals the servers differ: %s", text)
	}
}

// keyStages are the stages of a server without users: with keys and a lease, and
// under each alarm.
func keyStages() []stage {
	const noSpace, corrupt = "etcdserver: mvcc: database space exceeded", "etcdserver: corrupt cluster"
	full, lost := codes.ResourceExhausted, codes.DataLoss
	alarm := func(cleared, raised pb.AlarmType) func(*testing.T, *server) {
		return func(t *testing.T, s *server) {
			t.Helper()
			for _, r := range []*pb.AlarmRequest{
				{Action: pb.AlarmRequest_DEACTIVATE, MemberID: s.memberID, Alarm: cleared},
				{Action: pb.AlarmRequest_ACTIVATE, MemberID: s.memberID, Alarm: raised},
			} {
				if _, err := s.maint.Alarm(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	put := asPut(&pb.PutRequest{Key: keyA})
	return []stage{
		{seedRefusals, slices.Concat(rangeRefusals(), writeRefusals(), txnRefusals(), otherRefusals(),
			watchRefusals(), lockRefusals(), gatewayRefusals())},
		{alarm(pb.AlarmType_NONE, pb.AlarmType_NOSPACE), []refusal{
			putRefused("alarm", &pb.PutRequest{Key: keyA}, full, noSpace),
			putRefused("alarm, unknown lease", &pb.PutRequest{Key: keyA, Lease: 99}, full, noSpace),
			txnRefused("alarm, put in the branch not taken", &pb.TxnRequest{Failure: []*pb.RequestOp{put}}, full, noSpace),
			grantRefused("alarm", &pb.LeaseGrantRequest{TTL: 9}, full, noSpace),
			posted("alarm", "/v3/kv/put", `{"key":"YQ=="}`, `429 {"code":8,"message":"`+noSpace+`"}`),
		}},
		{alarm(pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT), []refusal{
			putRefused("corrupt", &pb.PutRequest{Key: keyA}, lost, corrupt),
			deleteRefused("corrupt", &pb.DeleteRangeRequest{Key: keyA}, lost, corrupt),
			txnRefused("corrupt", &pb.TxnRequest{Success: []*pb.RequestOp{put}}, lost, corrupt),
			compactRefused("corrupt", &pb.CompactionRequest{Revision: 4}, lost, corrupt),
			grantRefused("corrupt", &pb.LeaseGrantRequest{TTL: 9}, lost, corrupt),
			posted("corrupt", "/v3/kv/put", `{"key":"YQ=="}`, `500 {"code":15,"message":"`+corrupt+`"}`),
		}},
		{alarm(pb.AlarmType_CORRUPT, pb.AlarmType_NONE), timeRefusals()},
	}
}

// seedRefusals brings a fresh server to revision 6, compacted at 3, with lease 7.
func seedRefusals(t *testing.T, s *server) {
	t.Helper()
	if _, err := s.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: 7, TTL: longTTL}); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := s.kv.Put(t.Context(), &pb.PutRequest{Key: keyA, Lease: 7}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.kv.Compact(t.Context(), &pb.CompactionRequest{Revision: goneRevision + 1}); err != nil {
		t.Fatal(err)
	}
}
