package differential

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

func grantRefused(name string, r *pb.LeaseGrantRequest, code codes.Code, text string) refusal {
	return refusal{"LeaseGrant: " + name, func(ctx context.Context, s *server) error {
		_, err := s.lease.LeaseGrant(ctx, r)
		return err
	}, code, text}
}

// invoked calls a method by its name.
func invoked(name, method string, code codes.Code, text string) refusal {
	return refusal{name, func(ctx context.Context, s *server) error {
		return s.conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{})
	}, code, text}
}

func otherRefusals() []refusal {
	const failed = codes.FailedPrecondition
	return []refusal{
		grantRefused("id in use", &pb.LeaseGrantRequest{ID: 7, TTL: 100}, failed, leaseExists),
		grantRefused("id in use, too long", &pb.LeaseGrantRequest{ID: 7, TTL: maxLeaseTTL + 1}, codes.OutOfRange, ttlTooLong),
		grantRefused("too long", &pb.LeaseGrantRequest{TTL: math.MaxInt64}, codes.OutOfRange, ttlTooLong),
		{"LeaseRevoke: unknown", func(ctx context.Context, s *server) error {
			_, err := s.lease.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: 99})
			return err
		}, codes.NotFound, noLease},
		{"LeaseRevoke: none", func(ctx context.Context, s *server) error {
			_, err := s.lease.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{})
			return err
		}, codes.NotFound, noLease},
		{"HashKV: future", func(ctx context.Context, s *server) error {
			_, err := s.maint.HashKV(ctx, &pb.HashKVRequest{Revision: futureRevision})
			return err
		}, codes.OutOfRange, future},
		{"HashKV: compacted", func(ctx context.Context, s *server) error {
			_, err := s.maint.HashKV(ctx, &pb.HashKVRequest{Revision: goneRevision})
			return err
		}, codes.OutOfRange, compacted},
		{"MoveLeader: to nobody", func(ctx context.Context, s *server) error {
			_, err := s.maint.MoveLeader(ctx, &pb.MoveLeaderRequest{TargetID: 1})
			return err
		}, failed, "etcdserver: bad leader transferee"},
		{"Downgrade: no version", func(ctx context.Context, s *server) error {
			_, err := s.maint.Downgrade(ctx, &pb.DowngradeRequest{Action: pb.DowngradeRequest_VALIDATE})
			return err
		}, codes.InvalidArgument, "etcdserver: wrong downgrade target version format"},
		{"Downgrade: too far", func(ctx context.Context, s *server) error {
			_, err := s.maint.Downgrade(ctx, &pb.DowngradeRequest{Action: pb.DowngradeRequest_ENABLE, Version: "3.5.0"})
			return err
		}, codes.InvalidArgument, "etcdserver: invalid downgrade target version"},
		{"Downgrade: unknown action", func(ctx context.Context, s *server) error {
			_, err := s.maint.Downgrade(ctx, &pb.DowngradeRequest{Action: 9})
			return err
		}, codes.Unknown, "etcdserver: unknown method"},
		{"MemberRemove: unknown", func(ctx context.Context, s *server) error {
			_, err := s.cluster.MemberRemove(ctx, &pb.MemberRemoveRequest{ID: 1})
			return err
		}, codes.NotFound, "etcdserver: member not found"},
		{"MemberUpdate: unknown", func(ctx context.Context, s *server) error {
			_, err := s.cluster.MemberUpdate(ctx, &pb.MemberUpdateRequest{ID: 1, PeerURLs: []string{"http://localhost:1"}})
			return err
		}, codes.NotFound, "etcdserver: member not found"},
		{"MemberPromote: unknown", func(ctx context.Context, s *server) error {
			_, err := s.cluster.MemberPromote(ctx, &pb.MemberPromoteRequest{ID: 1})
			return err
		}, codes.NotFound, "etcdserver: member not found"},
		{"MemberAdd: no URL", func(ctx context.Context, s *server) error {
			_, err := s.cluster.MemberAdd(ctx, &pb.MemberAddRequest{})
			return err
		}, codes.InvalidArgument, "etcdserver: given member URLs are invalid"},
		{"MemberAdd: URL in use", func(ctx context.Context, s *server) error {
			_, err := s.cluster.MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: []string{advertisePeer}})
			return err
		}, failed, "etcdserver: Peer URLs already exists"},
		invoked("unknown method", "/etcdserverpb.KV/Nothing", codes.Unimplemented, "unknown method Nothing for service etcdserverpb.KV"),
		invoked("unknown service", "/etcdserverpb.Nothing/Range", codes.Unimplemented, "unknown service etcdserverpb.Nothing"),
		{"MemberRemove: the only one", func(ctx context.Context, s *server) error {
			_, err := s.cluster.MemberRemove(ctx, &pb.MemberRemoveRequest{ID: s.memberID})
			return err
		}, codes.Unknown, "etcdserver: re-configuration failed due to not enough started members"},
		{"MemberPromote: no learner", func(ctx context.Context, s *server) error {
			_, err := s.cluster.MemberPromote(ctx, &pb.MemberPromoteRequest{ID: s.memberID})
			return err
		}, failed, "etcdserver: can only promote a learner member"},
		{"Health: another service", func(ctx context.Context, s *server) error {
			_, err := healthpb.NewHealthClient(s.conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "etcdserverpb.KV"})
			return err
		}, codes.NotFound, "unknown service"},
		{"Put: client of a garbled version", garbledVersion, codes.InvalidArgument, "etcdserver: invalid client api version"},
	}
}

// garbledVersion makes a call with a header that gRPC's client does not send.
func garbledVersion(ctx context.Context, s *server) error {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	empty := bytes.NewReader(make([]byte, 5)) // a message of no bytes
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.address+"/etcdserverpb.KV/Put", empty)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	req.Header.Set("Client-Api-Version", "\xff\xfe")
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	// An answer without a message has all in its header.
	get := func(name string) string { return resp.Header.Get(name) + resp.Trailer.Get(name) }
	code, err := strconv.Atoi(get("Grpc-Status"))
	if err != nil {
		return fmt.Errorf("status of the call: %w", err)
	}
	return status.Error(codes.Code(code), get("Grpc-Message"))
}

// watchRefused creates watches on one stream, of which the last ends at once.
func watchRefused(name, text string, creates ...*pb.WatchCreateRequest) refusal {
	return refusal{"Watch: " + name, func(ctx context.Context, s *server) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := s.watch.Watch(ctx)
		if err != nil {
			return err
		}
		var resp *pb.WatchResponse
		for _, r := range creates {
			if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}}); err != nil {
				return err
			}
			if resp, err = stream.Recv(); err != nil {
				return err
			}
		}
		if resp.GetCreated() && resp.GetCanceled() && resp.GetWatchId() == -1 && resp.GetCompactRevision() == 0 {
			return errors.New("watch refused: " + resp.GetCancelReason())
		}
		if resp, err = stream.Recv(); err != nil {
			return err
		}
		if !resp.GetCanceled() || resp.GetCancelReason() != "" || resp.GetWatchId() != 0 || resp.GetHeader().GetRevision() != 0 {
			return fmt.Errorf("neither refused nor ended: %v", resp)
		}
		return fmt.Errorf("watch ended: compacted at %d", resp.GetCompactRevision())
	}, codes.Unknown, text}
}

func watchRefusals() []refusal {
	return []refusal{
		watchRefused("negative start", "watch refused: "+compacted, &pb.WatchCreateRequest{Key: keyA, StartRevision: -1}),
		watchRefused("empty range", "watch refused: mvcc: watcher range is empty", &pb.WatchCreateRequest{Key: keyA, RangeEnd: keyA}),
		watchRefused("end before key", "watch refused: mvcc: watcher range is empty", &pb.WatchCreateRequest{Key: []byte("b"), RangeEnd: keyA}),
		watchRefused("id in use", "watch refused: mvcc: duplicate watch ID provided on the WatchStream",
			&pb.WatchCreateRequest{Key: keyA, WatchId: 5}, &pb.WatchCreateRequest{Key: keyA, WatchId: 5}),
		watchRefused("compacted start", "watch ended: compacted at 3", &pb.WatchCreateRequest{Key: keyA, StartRevision: goneRevision}),
	}
}

// posted calls the JSON API.
func posted(name, path, body, text string) refusal {
	return sent(name, http.MethodPost, path, body, "", text)
}

// sent calls the JSON API with a method and, if that is not nothing, a token. The
// text is the status and the body with its fields in order.
func sent(name, method, path, body, token, text string) refusal {
	return refusal{"gateway: " + name, func(ctx context.Context, s *server) error {
		req, err := http.NewRequestWithContext(ctx, method, "http://"+s.address+path, strings.NewReader(body))
		if err != nil {
			return err
		}
		if token != "" {
			req.Header.Set("Authorization", token)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		answer := struct {
			Code    int               `json:"code"`
			Message string            `json:"message"`
			Details []json.RawMessage `json:"details,omitempty"`
		}{}
		decoder := json.NewDecoder(resp.Body)
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&answer); err != nil {
			return fmt.Errorf("%d without an error in JSON: %w", resp.StatusCode, err)
		}
		again, err := json.Marshal(answer)
		if err != nil {
			return err
		}
		return fmt.Errorf("%d %s", resp.StatusCode, again)
	}, codes.Unknown, text}
}

func gatewayRefusals() []refusal {
	return []refusal{
		posted("no key", "/v3/kv/put", `{}`, `400 {"code":3,"message":"etcdserver: key is not provided"}`),
		posted("no key, beta path", "/v3beta/kv/put", `{}`, `400 {"code":3,"message":"etcdserver: key is not provided"}`),
		posted("unknown lease", "/v3/lease/revoke", `{"ID":99}`, `404 {"code":5,"message":"etcdserver: requested lease not found"}`),
		posted("lease in use", "/v3/lease/grant", `{"ID":7,"TTL":9}`, `400 {"code":9,"message":"etcdserver: lease already exists"}`),
		posted("future", "/v3/kv/range", `{"key":"YQ==","revision":1000}`,
			`400 {"code":11,"message":"etcdserver: mvcc: required revision is a future revision"}`),
		posted("lock without its lease", "/v3/lock/lock", `{"name":"bA==","lease":99}`,
			`500 {"code":2,"message":"etcdserver: requested lease not found"}`),
		sent("GET", http.MethodGet, "/v3/kv/range", "", "", `501 {"code":12,"message":"Method Not Allowed"}`),
		posted("no such path", "/v3/kv/nothing", `{}`, `404 {"code":5,"message":"Not Found"}`),
	}
}

// lockRefused calls Lock or Election.
func lockRefused(name, text string, call func(context.Context, v3lockpb.LockClient, v3electionpb.ElectionClient) error) refusal {
	return refusal{name, func(ctx context.Context, s *server) error {
		return call(ctx, v3lockpb.NewLockClient(s.conn), v3electionpb.NewElectionClient(s.conn))
	}, codes.Unknown, text}
}

func lockRefusals() []refusal {
	type (
		locks     = v3lockpb.LockClient
		elections = v3electionpb.ElectionClient
	)
	const noField = `"leader" field must be provided`
	return []refusal{
		lockRefused("Lock: unknown lease", noLease, func(ctx context.Context, l locks, _ elections) error {
			_, err := l.Lock(ctx, &v3lockpb.LockRequest{Name: []byte("l"), Lease: 404})
			return err
		}),
		lockRefused("Unlock: nothing", noKey, func(ctx context.Context, l locks, _ elections) error {
			_, err := l.Unlock(ctx, &v3lockpb.UnlockRequest{})
			return err
		}),
		lockRefused("Campaign: unknown lease", noLease, func(ctx context.Context, _ locks, e elections) error {
			_, err := e.Campaign(ctx, &v3electionpb.CampaignRequest{Name: []byte("e"), Lease: 404})
			return err
		}),
		lockRefused("Leader: of an empty election", "election: no leader", func(ctx context.Context, _ locks, e elections) error {
			_, err := e.Leader(ctx, &v3electionpb.LeaderRequest{Name: []byte("e")})
			return err
		}),
		lockRefused("Proclaim: without a leader", noField, func(ctx context.Context, _ locks, e elections) error {
			_, err := e.Proclaim(ctx, &v3electionpb.ProclaimRequest{})
			return err
		}),
		lockRefused("Proclaim: after the reign", "election: not leader", func(ctx context.Context, _ locks, e elections) error {
			_, err := e.Proclaim(ctx, &v3electionpb.ProclaimRequest{
				Leader: &v3electionpb.LeaderKey{Name: []byte("e"), Key: []byte("e/1"), Rev: 1, Lease: 1},
			})
			return err
		}),
		lockRefused("Proclaim: without a key", noKey, func(ctx context.Context, _ locks, e elections) error {
			_, err := e.Proclaim(ctx, &v3electionpb.ProclaimRequest{Leader: &v3electionpb.LeaderKey{}})
			return err
		}),
		lockRefused("Resign: without a leader", noField, func(ctx context.Context, _ locks, e elections) error {
			_, err := e.Resign(ctx, &v3electionpb.ResignRequest{})
			return err
		}),
		lockRefused("Resign: without a key", noKey, func(ctx context.Context, _ locks, e elections) error {
			_, err := e.Resign(ctx, &v3electionpb.ResignRequest{Leader: &v3electionpb.LeaderKey{}})
			return err
		}),
	}
}

// timeRefusals end calls that wait for what does not come.
func timeRefusals() []refusal {
	observe := func(ctx context.Context, s *server) error {
		stream, err := v3electionpb.NewElectionClient(s.conn).Observe(ctx, &v3electionpb.LeaderRequest{Name: []byte("e")})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	return []refusal{
		{"Observe: time over", func(ctx context.Context, s *server) error {
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			return observe(ctx, s)
		}, codes.DeadlineExceeded, "context deadline exceeded"},
		{"Observe: cancelled", func(ctx context.Context, s *server) error {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(50*time.Millisecond, cancel)
			return observe(ctx, s)
		}, codes.Canceled, "context canceled"},
		{"Lock: time over", func(ctx context.Context, s *server) error {
			lock := v3lockpb.NewLockClient(s.conn)
			held, err := lock.Lock(ctx, &v3lockpb.LockRequest{Name: []byte("held")})
			if err != nil {
				return err
			}
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			_, late := lock.Lock(short, &v3lockpb.LockRequest{Name: []byte("held")})
			if _, err := lock.Unlock(ctx, &v3lockpb.UnlockRequest{Key: held.GetKey()}); err != nil {
				return err
			}
			return late
		}, codes.DeadlineExceeded, "context deadline exceeded"},
	}
}
