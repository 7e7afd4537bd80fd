package differential

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// defaultAuthOps is the length of the run for each kind of tokens.
const defaultAuthOps = 1000

// Names and passwords are few, so that they meet.
var (
	authUsers     = []string{"root", "u1", "u2", "u3", "u4", ""}
	authRoles     = []string{"root", "r1", "r2", "r3", ""}
	authPasswords = []string{"p1", "p2", ""}
	// authHashes are hashes of passwords as clients may send them: one of "p1", one
	// that fits nothing, and one that is none.
	authHashes = []string{
		"JDJhJDA0JDRvV2g4bUdLVk5mZUJHRm1hdVZpR3Vrc2ZGTnpZMWpYVTRTTGJnUzRCTWFoZzB1SXdBZ1Iy", "cGxhaW4=", "!",
	}
	// authTokens are what no server ever issued.
	authTokens = []string{"", "x", "x.1", "abcdefghijklmnop.1", "a.b", "a.b.c", "Bearer x.1"}
)

// TestAuthDifferential runs random changes of users and roles, and requests of all
// kinds with and without rights, on a real etcd and on Latchkey and compares all
// that they answer.
func TestAuthDifferential(t *testing.T) {
	runAuthDifferential(t, func() *layout { return layoutOf(t, 1) })
}

// TestAuthDifferentialShards is TestAuthDifferential with several shards.
func TestAuthDifferentialShards(t *testing.T) {
	runAuthDifferential(t, func() *layout { return layoutOf(t, defaultShards) })
}

func runAuthDifferential(t *testing.T, layouts func() *layout) {
	t.Helper()
	ops := setting(t, opsVariable, 2*defaultAuthOps) / 2
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("secret", 10)), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tokens := range map[string]string{
		"simple": "simple", "jwt": "jwt,sign-method=HS256,ttl=24h,priv-key=" + key,
	} {
		t.Run(name, func(t *testing.T) {
			seed := diffSeed(t)
			reference := startEtcd(t, "etcd", func(c *embed.Config) { c.AuthToken, c.BcryptCost = tokens, 4 })
			other := startShards(t, layouts(), seed, "--auth-token", tokens, "--bcrypt-cost", "4")
			d := &authDiffer{differ: newDiffer(t, reference, other, seed), passwords: make(map[string]string)}
			d.replay = replayOf(t, other, seed, 2*ops)
			t.Logf("seed %d, %d operations; to run it again: %s", seed, ops, d.replay)
			d.run(int(ops))
			d.report()
			if ops >= defaultAuthOps {
				d.missed(name)
			}
		})
	}
}

// authDiffer is a differ whose requests are made by users.
type authDiffer struct {
	*differ

	// logins are the last tokens that were issued.
	logins []login
	// passwords are the users' last passwords, as far as they are known.
	passwords map[string]string
	// fixed, if not nil, is what all requests are sent with.
	fixed func(*server) metadata.MD
	// used is the user whose token the last request had, or nothing.
	used string
}

// login is a token of the same user from each server.
type login struct {
	user   string
	tokens map[*server]string
}

// authOperations are what a run is made of, with how often each is chosen.
var authOperations = []struct {
	weight int
	run    func(*authDiffer)
}{
	{60, (*authDiffer).opAuthenticate},
	{12, (*authDiffer).opEnable},
	{1, (*authDiffer).opDisable},
	{10, (*authDiffer).opAuthStatus},
	{18, (*authDiffer).opUserAdd},
	{5, (*authDiffer).opUserDelete},
	{8, (*authDiffer).opChangePassword},
	{24, (*authDiffer).opUserGrant},
	{6, (*authDiffer).opUserRevoke},
	{14, (*authDiffer).opUserGet},
	{6, (*authDiffer).opUserList},
	{10, (*authDiffer).opRoleAdd},
	{3, (*authDiffer).opRoleDelete},
	{40, (*authDiffer).opRoleGrant},
	{10, (*authDiffer).opRoleRevoke},
	{14, (*authDiffer).opRoleGet},
	{6, (*authDiffer).opRoleList},
	{90, (*authDiffer).opRange},
	{20, (*authDiffer).opRangeStream},
	{110, (*authDiffer).opPut},
	{50, (*authDiffer).opDelete},
	{90, (*authDiffer).opTxn},
	{8, (*authDiffer).opCompact},
	{20, (*authDiffer).opGrant},
	{20, (*authDiffer).opRevoke},
	{25, (*authDiffer).opKeepAlive},
	{30, (*authDiffer).opTimeToLive},
	{14, (*authDiffer).opLeases},
	{40, (*authDiffer).opWatch},
	{30, (*authDiffer).opCluster},
	{40, (*authDiffer).opMaintenance},
}

// run runs a sequence of n operations behind one that makes users and roles.
func (d *authDiffer) run(n int) {
	d.openStreams()
	d.begin()
	total := 0
	for _, o := range authOperations {
		total += o.weight
	}
	for d.step = 1; d.step <= n; d.step++ {
		left := d.gen.IntN(total)
		for _, o := range authOperations {
			if left -= o.weight; left < 0 {
				o.run(d)
				break
			}
		}
	}
}

// begin makes users with roles, and keys, and lets requests be checked.
func (d *authDiffer) begin() {
	for _, name := range []string{"root", "u1", "u2", "u3"} {
		d.userAdd(&pb.AuthUserAddRequest{Name: name, Password: "p1"})
		role := strings.Replace(name, "u", "r", 1)
		ask(d, "RoleAdd", &pb.AuthRoleAddRequest{Name: role}, nil, pb.AuthClient.RoleAdd)
		ask(d, "UserGrantRole", &pb.AuthUserGrantRoleRequest{User: name, Role: role}, nil, pb.AuthClient.UserGrantRole)
	}
	for _, key := range d.gen.layout.pool {
		ask(d, "Put", &pb.PutRequest{Key: key, Value: []byte("v")}, nil, putOf)
	}
	ask(d, "AuthEnable", &pb.AuthEnableRequest{}, nil, pb.AuthClient.AuthEnable)
	for _, name := range []string{"root", "u1", "u2", "u3"} {
		d.authenticate(name, "p1")
	}
	d.refusals()
}

// refusals meets every error that a run must meet.
func (d *authDiffer) refusals() {
	key := []byte("a")
	watch := &pb.WatchCreateRequest{Key: key}
	lease := &pb.LeaseGrantRequest{ID: 1, TTL: longTTL}
	defer func() { d.fixed = nil }()
	for _, sender := range []func(*server) metadata.MD{
		func(*server) metadata.MD { return nil },
		func(*server) metadata.MD { return metadata.Pairs("token", "x.1") },
		func(s *server) metadata.MD { return metadata.Pairs("token", d.logins[0].tokens[s]) },
		func(s *server) metadata.MD { return metadata.Pairs("token", d.logins[1].tokens[s]) },
	} {
		d.fixed = sender
		d.watch(watch)
		d.grant(lease)
		ask(d, "Range", &pb.RangeRequest{Key: key}, nil, pb.KVClient.Range)
		ask(d, "Put", &pb.PutRequest{Key: key, Lease: 1}, nil, putOf)
		d.userAdd(&pb.AuthUserAddRequest{Name: "u1", Password: "p1"})
		ask(d, "UserGet", &pb.AuthUserGetRequest{Name: "nobody"}, nil, pb.AuthClient.UserGet)
		ask(d, "UserDelete", &pb.AuthUserDeleteRequest{Name: "root"}, nil, pb.AuthClient.UserDelete)
		ask(d, "RoleAdd", &pb.AuthRoleAddRequest{Name: "r1"}, nil, pb.AuthClient.RoleAdd)
		ask(d, "RoleGet", &pb.AuthRoleGetRequest{Role: "nobody"}, nil, pb.AuthClient.RoleGet)
		ask(d, "RoleRevokePermission", &pb.AuthRoleRevokePermissionRequest{Role: "r1", Key: key}, nil, pb.AuthClient.RoleRevokePermission)
		ask(d, "LeaseTimeToLive", &pb.LeaseTimeToLiveRequest{ID: 1, Keys: true}, nil, pb.LeaseClient.LeaseTimeToLive)
		ask(d, "LeaseLeases", &pb.LeaseLeasesRequest{}, nil, pb.LeaseClient.LeaseLeases)
		d.keepAlive(&pb.LeaseKeepAliveRequest{ID: 1})
	}
	// A change makes tokens old, where they are signed.
	d.fixed = func(s *server) metadata.MD { return metadata.Pairs("token", d.logins[0].tokens[s]) }
	ask(d, "RoleAdd", &pb.AuthRoleAddRequest{Name: "r4"}, nil, pb.AuthClient.RoleAdd)
	ask(d, "Range", &pb.RangeRequest{Key: key}, nil, pb.KVClient.Range)
	d.authenticate("u1", "wrong")
}

// sender returns metadata of somebody, for each server.
func (d *authDiffer) sender(kind string) func(*server) metadata.MD {
	g := d.gen
	d.used = ""
	if d.fixed != nil {
		return d.fixed
	}
	field := pick(g, []string{"token", "token", "token", "authorization"})
	prefix := ""
	if g.one(4) {
		prefix = "Bearer "
	}
	if len(d.logins) == 0 || g.one(12) {
		if g.one(2) {
			return func(*server) metadata.MD { return metadata.MD{} }
		}
		token := pick(g, authTokens)
		return func(*server) metadata.MD { return metadata.Pairs(field, token) }
	}
	l := pick(g, d.logins)
	// Only root may change users, and all ever after depends on that.
	if strings.HasPrefix(kind, "User") || strings.HasPrefix(kind, "Role") || strings.HasPrefix(kind, "Auth") {
		for i := range d.logins {
			if last := d.logins[len(d.logins)-1-i]; last.user == "root" && !g.one(3) {
				l = last
				break
			}
		}
	}
	d.used = l.user
	both := g.one(20)
	return func(s *server) metadata.MD {
		md := metadata.Pairs(field, prefix+l.tokens[s])
		if both {
			md.Set("authorization", "x.1")
		}
		return md
	}
}

// send sends a request to both servers, compares the answers and returns them. A nil
// mask compares all that is in them.
func (d *authDiffer) send(kind string, req proto.Message, mask func(answer) answer, rpc func(context.Context, *server) answer) [2]answer {
	d.t.Helper()
	d.note(kind, req)
	sender := d.sender(kind)
	answers := d.differ.send(kind, req, func(s *server) answer {
		ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(d.t.Context(), sender(s)), d.patience)
		defer cancel()
		return rpc(ctx, s)
	})
	d.countError(kind, answers[0])
	compared := answers
	if mask != nil {
		compared = [2]answer{mask(answers[0]), mask(answers[1])}
	}
	d.judge(req, answers, compared)
	if err := answers[0].err; err != nil && d.used != "" && (err.Code() == codes.Unauthenticated || err.Message() == oldRevision) {
		d.again(d.used)
	}
	return answers
}

// oldRevision is what a sender hears whose signed token is older than the users.
const oldRevision = "etcdserver: revision of auth store is old"

// again mostly forgets a user's tokens, which are void, and takes a new one.
func (d *authDiffer) again(user string) {
	if d.gen.one(5) {
		return
	}
	d.logins = slices.DeleteFunc(d.logins, func(l login) bool { return l.user == user })
	if password, ok := d.passwords[user]; ok {
		d.authenticate(user, password)
	}
}

// ask is send for a unary call.
func ask[Client any, Req, Resp proto.Message](
	d *authDiffer, kind string, req Req, mask func(answer) answer, rpc func(Client, context.Context, Req, ...grpc.CallOption) (Resp, error),
) answer {
	d.t.Helper()
	return d.send(kind, req, mask, func(ctx context.Context, s *server) answer {
		client, ok := s.client(new(Client)).(Client)
		if !ok {
			return answer{msg: &emptypb.Empty{}}
		}
		resp, err := rpc(client, ctx, forServer(s, req))
		return answered(resp, err)
	})[0]
}

// client returns the client of the interface that of points to.
func (s *server) client(of any) any {
	switch of.(type) {
	case *pb.KVClient:
		return s.kv
	case *pb.LeaseClient:
		return s.lease
	case *pb.ClusterClient:
		return s.cluster
	case *pb.MaintenanceClient:
		return s.maint
	case *pb.AuthClient:
		return s.auth
	default:
		return nil
	}
}

// outcome leaves of an answer that there was one.
func outcome(a answer) answer {
	if a.err == nil {
		a.msg = &emptypb.Empty{}
	}
	return a
}

var putOf = pb.KVClient.Put

func (d *authDiffer) user() string { return pick(d.gen, authUsers) }

func (d *authDiffer) role() string { return pick(d.gen, authRoles) }

func (d *authDiffer) opAuthenticate() {
	user, password := d.user(), pick(d.gen, authPasswords)
	if known, ok := d.passwords[user]; ok && !d.gen.one(5) {
		password = known
	}
	d.authenticate(user, password)
}

// authenticate keeps the tokens that it gets.
func (d *authDiffer) authenticate(user, password string) {
	const kept = 12
	l := login{user: user, tokens: make(map[*server]string)}
	answers := d.send("Authenticate", &pb.AuthenticateRequest{Name: user, Password: password}, func(a answer) answer {
		if r, ok := a.msg.(*pb.AuthenticateResponse); ok && r.GetToken() != "" {
			r = proto.CloneOf(r)
			r.Token = "token"
			a.msg = r
		}
		return a
	}, func(ctx context.Context, s *server) answer {
		resp, err := s.auth.Authenticate(ctx, &pb.AuthenticateRequest{Name: user, Password: password})
		return answered(resp, err)
	})
	for i, a := range answers {
		r, ok := a.msg.(*pb.AuthenticateResponse)
		if !ok {
			return
		}
		l.tokens[d.servers[i]] = r.GetToken()
	}
	if d.logins = append(d.logins, l); len(d.logins) > kept {
		d.logins = slices.Delete(d.logins, 0, 1)
	}
}

// opEnable mostly sees to it first that root can be.
func (d *authDiffer) opEnable() {
	if !d.gen.one(4) {
		d.userAdd(&pb.AuthUserAddRequest{Name: "root", Password: "p1"})
		ask(d, "UserGrantRole", &pb.AuthUserGrantRoleRequest{User: "root", Role: "root"}, nil, pb.AuthClient.UserGrantRole)
	}
	ask(d, "AuthEnable", &pb.AuthEnableRequest{}, nil, pb.AuthClient.AuthEnable)
}

func (d *authDiffer) opDisable() {
	ask(d, "AuthDisable", &pb.AuthDisableRequest{}, nil, pb.AuthClient.AuthDisable)
}

func (d *authDiffer) opAuthStatus() {
	ask(d, "AuthStatus", &pb.AuthStatusRequest{}, nil, pb.AuthClient.AuthStatus)
}

func (d *authDiffer) opUserAdd() {
	r := &pb.AuthUserAddRequest{Name: d.user(), Password: pick(d.gen, authPasswords)}
	// root must always be able to log in.
	if r.Name != "root" && d.gen.one(3) {
		r.Options = &authpb.UserAddOptions{NoPassword: d.gen.one(2)}
	}
	if d.gen.one(10) {
		r.HashedPassword = pick(d.gen, authHashes)
	}
	if d.gen.one(30) {
		r.Password = strings.Repeat("p", 71+d.gen.IntN(3))
	}
	d.userAdd(r)
}

func (d *authDiffer) userAdd(r *pb.AuthUserAddRequest) {
	if a := ask(d, "UserAdd", r, nil, pb.AuthClient.UserAdd); a.err == nil {
		d.passwords[r.Name] = r.Password
	}
}

func (d *authDiffer) opUserDelete() {
	ask(d, "UserDelete", &pb.AuthUserDeleteRequest{Name: d.user()}, nil, pb.AuthClient.UserDelete)
}

func (d *authDiffer) opChangePassword() {
	r := &pb.AuthUserChangePasswordRequest{Name: d.user(), Password: pick(d.gen, authPasswords)}
	if r.Name == "root" && r.Password == "" {
		r.Password = "p1"
	}
	if r.Name != "root" && d.gen.one(3) {
		r.Password, r.HashedPassword = "", pick(d.gen, authHashes)
	}
	if a := ask(d, "UserChangePassword", r, nil, pb.AuthClient.UserChangePassword); a.err == nil {
		d.passwords[r.Name] = r.Password
	}
}

func (d *authDiffer) opUserGrant() {
	ask(d, "UserGrantRole", &pb.AuthUserGrantRoleRequest{User: d.user(), Role: d.role()}, nil, pb.AuthClient.UserGrantRole)
}

func (d *authDiffer) opUserRevoke() {
	ask(d, "UserRevokeRole", &pb.AuthUserRevokeRoleRequest{Name: d.user(), Role: d.role()}, nil, pb.AuthClient.UserRevokeRole)
}

func (d *authDiffer) opUserGet() {
	ask(d, "UserGet", &pb.AuthUserGetRequest{Name: d.user()}, nil, pb.AuthClient.UserGet)
}

func (d *authDiffer) opUserList() {
	ask(d, "UserList", &pb.AuthUserListRequest{}, nil, pb.AuthClient.UserList)
}

func (d *authDiffer) opRoleAdd() {
	ask(d, "RoleAdd", &pb.AuthRoleAddRequest{Name: d.role()}, nil, pb.AuthClient.RoleAdd)
}

func (d *authDiffer) opRoleDelete() {
	ask(d, "RoleDelete", &pb.AuthRoleDeleteRequest{Role: d.role()}, nil, pb.AuthClient.RoleDelete)
}

// permission returns a permission for a range that may be none.
func (d *authDiffer) permission() *authpb.Permission {
	g := d.gen
	p := &authpb.Permission{PermType: authpb.Permission_Type(g.IntN(3)), Key: g.key()}
	p.RangeEnd = g.rangeEnd(p.Key)
	if g.one(6) {
		p.Key = pick(g, [][]byte{{0}, []byte("a"), []byte("a/"), []byte("b")})
		p.RangeEnd = pick(g, [][]byte{{0}, []byte("b"), []byte("c"), {0xff}})
	}
	if g.one(40) {
		p.PermType = pick(g, []authpb.Permission_Type{3, -1})
	}
	return p
}

func (d *authDiffer) opRoleGrant() {
	r := &pb.AuthRoleGrantPermissionRequest{Name: d.role(), Perm: d.permission()}
	if d.gen.one(30) {
		r.Perm = nil
	}
	ask(d, "RoleGrantPermission", r, nil, pb.AuthClient.RoleGrantPermission)
}

// opRoleRevoke mostly takes back what a role has.
func (d *authDiffer) opRoleRevoke() {
	p := d.permission()
	r := &pb.AuthRoleRevokePermissionRequest{Role: d.role(), Key: p.Key, RangeEnd: p.RangeEnd}
	if d.gen.one(6) {
		ask(d, "RoleRevokePermission", r, nil, pb.AuthClient.RoleRevokePermission)
		return
	}
	a := ask(d, "RoleGet", &pb.AuthRoleGetRequest{Role: r.Role}, nil, pb.AuthClient.RoleGet)
	if role, ok := a.msg.(*pb.AuthRoleGetResponse); ok && len(role.GetPerm()) > 0 {
		p := pick(d.gen, role.GetPerm())
		r.Key, r.RangeEnd = p.GetKey(), p.GetRangeEnd()
	}
	ask(d, "RoleRevokePermission", r, nil, pb.AuthClient.RoleRevokePermission)
}

func (d *authDiffer) opRoleGet() {
	ask(d, "RoleGet", &pb.AuthRoleGetRequest{Role: d.role()}, nil, pb.AuthClient.RoleGet)
}

func (d *authDiffer) opRoleList() {
	ask(d, "RoleList", &pb.AuthRoleListRequest{}, nil, pb.AuthClient.RoleList)
}

func (d *authDiffer) opRange() {
	ask(d, "Range", d.gen.rangeRequest(), nil, pb.KVClient.Range)
}

func (d *authDiffer) opRangeStream() {
	r := d.gen.rangeRequest()
	r.SortOrder, r.SortTarget = pb.RangeRequest_NONE, pb.RangeRequest_KEY
	r.MinModRevision, r.MaxModRevision, r.MinCreateRevision, r.MaxCreateRevision = 0, 0, 0, 0
	d.send("RangeStream", r, nil, func(ctx context.Context, s *server) answer {
		a, err := streamRange(ctx, s, forServer(s, r))
		if err != nil {
			return answered(nil, err)
		}
		return a
	})
}

func (d *authDiffer) opPut() { ask(d, "Put", d.gen.putRequest(), nil, putOf) }

func (d *authDiffer) opDelete() {
	ask(d, "DeleteRange", d.gen.deleteRequest(), nil, pb.KVClient.DeleteRange)
}

func (d *authDiffer) opTxn() {
	ask(d, "Txn", d.gen.transaction(), nil, pb.KVClient.Txn)
}

// opCompact compacts at no revision that can be: history stays whole, the checks
// before are all the same.
func (d *authDiffer) opCompact() {
	r := &pb.CompactionRequest{Revision: pick(d.gen, []int64{-1, d.gen.rev + 1000})}
	ask(d, "Compact", r, nil, pb.KVClient.Compact)
}

func (d *authDiffer) opGrant() {
	d.grant(&pb.LeaseGrantRequest{ID: pick(d.gen, givenLeases), TTL: longTTL + d.gen.Int64N(1000)})
}

func (d *authDiffer) grant(r *pb.LeaseGrantRequest) {
	a := ask(d, "LeaseGrant", r, nil, pb.LeaseClient.LeaseGrant)
	if a.err == nil {
		d.leases[r.ID] = r.TTL
		d.gen.living = append(d.gen.living, r.ID)
	}
}

func (d *authDiffer) opRevoke() {
	r := &pb.LeaseRevokeRequest{ID: d.gen.leaseID()}
	a := ask(d, "LeaseRevoke", r, nil, pb.LeaseClient.LeaseRevoke)
	if a.err == nil {
		delete(d.leases, r.ID)
		d.gen.living = slices.DeleteFunc(d.gen.living, func(id int64) bool { return id == r.ID })
	}
}

func (d *authDiffer) opKeepAlive() { d.keepAlive(&pb.LeaseKeepAliveRequest{ID: d.gen.leaseID()}) }

func (d *authDiffer) keepAlive(r *pb.LeaseKeepAliveRequest) {
	d.send("LeaseKeepAlive", r, nil, func(ctx context.Context, s *server) answer {
		stream, err := s.lease.LeaseKeepAlive(ctx)
		if err == nil {
			err = stream.Send(forServer(s, r))
		}
		if err != nil {
			return answered(nil, err)
		}
		resp, err := stream.Recv()
		return answered(resp, err)
	})
}

func (d *authDiffer) opTimeToLive() {
	r := &pb.LeaseTimeToLiveRequest{ID: d.gen.leaseID(), Keys: !d.gen.one(3)}
	ask(d, "LeaseTimeToLive", r, nil, pb.LeaseClient.LeaseTimeToLive)
}

func (d *authDiffer) opLeases() {
	ask(d, "LeaseLeases", &pb.LeaseLeasesRequest{}, nil, pb.LeaseClient.LeaseLeases)
}

// opWatch opens a watch and looks at the answer to that.
func (d *authDiffer) opWatch() { d.watch(d.gen.watchRequest()) }

func (d *authDiffer) watch(r *pb.WatchCreateRequest) {
	answers := d.send("Watch create", r, nil, func(ctx context.Context, s *server) answer {
		stream, err := s.watch.Watch(ctx)
		if err == nil {
			err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: forServer(s, r)}})
		}
		if err != nil {
			return answered(nil, err)
		}
		resp, err := stream.Recv()
		return answered(resp, err)
	})
	if resp, ok := answers[0].msg.(*pb.WatchResponse); ok && resp.GetCanceled() {
		d.failed["Watch create"]++
		d.errs["watch: "+resp.GetCancelReason()]++
	}
}

func (d *authDiffer) opCluster() {
	switch d.gen.IntN(5) {
	case 0:
		r := &pb.MemberAddRequest{PeerURLs: []string{pick(d.gen, []string{advertisePeer, ":"})}}
		ask(d, "MemberAdd", r, nil, pb.ClusterClient.MemberAdd)
	case 1:
		ask(d, "MemberRemove", &pb.MemberRemoveRequest{ID: 1}, nil, pb.ClusterClient.MemberRemove)
	case 2:
		ask(d, "MemberUpdate", &pb.MemberUpdateRequest{ID: 1, PeerURLs: []string{"http://x:1"}}, nil, pb.ClusterClient.MemberUpdate)
	case 3:
		ask(d, "MemberPromote", &pb.MemberPromoteRequest{ID: 1}, nil, pb.ClusterClient.MemberPromote)
	default:
		ask(d, "MemberList", &pb.MemberListRequest{Linearizable: d.gen.one(2)}, nil, pb.ClusterClient.MemberList)
	}
}

func (d *authDiffer) opMaintenance() {
	switch d.gen.IntN(8) {
	case 0:
		ask(d, "Status", &pb.StatusRequest{}, outcome, pb.MaintenanceClient.Status)
	case 1:
		ask(d, "Alarm", &pb.AlarmRequest{Action: pb.AlarmRequest_GET}, nil, pb.MaintenanceClient.Alarm)
	case 2:
		r := &pb.AlarmRequest{
			Action: pick(d.gen, []pb.AlarmRequest_AlarmAction{pb.AlarmRequest_ACTIVATE, pb.AlarmRequest_DEACTIVATE}),
		}
		ask(d, "Alarm", r, nil, pb.MaintenanceClient.Alarm)
	case 3:
		ask(d, "Hash", &pb.HashRequest{}, outcome, pb.MaintenanceClient.Hash)
	case 4:
		ask(d, "HashKV", &pb.HashKVRequest{}, outcome, pb.MaintenanceClient.HashKV)
	case 5:
		ask(d, "MoveLeader", &pb.MoveLeaderRequest{TargetID: 1}, nil, pb.MaintenanceClient.MoveLeader)
	case 6:
		r := &pb.DowngradeRequest{Action: pb.DowngradeRequest_VALIDATE, Version: pick(d.gen, []string{"x", "3.0.0"})}
		ask(d, "Downgrade", r, nil, pb.MaintenanceClient.Downgrade)
	default:
		d.send("Snapshot", &pb.SnapshotRequest{}, outcome, func(ctx context.Context, s *server) answer {
			stream, err := s.maint.Snapshot(ctx, &pb.SnapshotRequest{})
			if err != nil {
				return answered(nil, err)
			}
			resp, err := stream.Recv()
			return answered(resp, err)
		})
	}
}

// authErrors must occur in every run of the default length.
var authErrors = []string{
	"FailedPrecondition: etcdserver: user name already exists",
	"FailedPrecondition: etcdserver: user name not found",
	"FailedPrecondition: etcdserver: role name already exists",
	"FailedPrecondition: etcdserver: role name not found",
	"FailedPrecondition: etcdserver: permission is not granted to the role",
	"InvalidArgument: etcdserver: user name is empty",
	"InvalidArgument: etcdserver: authentication failed, invalid user ID or password",
	"InvalidArgument: etcdserver: invalid auth management",
	"PermissionDenied: etcdserver: permission denied",
	"Unauthenticated: etcdserver: invalid auth token",
	"watch: rpc error: code = PermissionDenied desc = etcdserver: permission denied",
	"watch: rpc error: code = InvalidArgument desc = etcdserver: user name is empty",
	"watch: rpc error: code = Unauthenticated desc = etcdserver: invalid auth token",
}

// missed fails when the run has not met everything that it must.
func (d *authDiffer) missed(tokens string) {
	d.t.Helper()
	wanted := authErrors
	if tokens == "jwt" {
		wanted = append(slices.Clone(wanted), "InvalidArgument: "+oldRevision)
	}
	for _, text := range wanted {
		if d.errs[text] == 0 {
			d.t.Errorf("error %q was never met", text)
		}
	}
	for _, kind := range []string{"Range", "RangeStream", "Put", "DeleteRange", "Txn", "LeaseRevoke", "LeaseTimeToLive", "LeaseLeases", "LeaseKeepAlive", "Watch create"} {
		if n := d.kinds[kind]; d.failed[kind] == 0 || d.failed[kind] == n {
			d.t.Errorf("%d of %d of %s failed: the run shows too little", d.failed[kind], n, kind)
		}
	}
}
