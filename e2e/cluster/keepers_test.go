package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc/codes"
)

// keepers renew leases in all ways there are, and fail the test for an answer that makes
// a client give up.
type keepers struct {
	*cluster
	running sync.WaitGroup
	held    []*concurrency.Session
	// renewed counts what the sessions' clients heard.
	renewed atomic.Int64
}

// judge fails the test for an error that makes clients give up.
func (k *keepers) judge(ctx context.Context, what string, err error) {
	if err != nil && ctx.Err() == nil && !unavailable(err) {
		k.t.Errorf("%s: %v", what, err)
	}
}

func (k *keepers) grant(node int, ttl int64) (id clientv3.LeaseID) {
	k.t.Helper()
	g, err := k.clients[node].Grant(k.bound(), ttl)
	k.must(err)
	return g.ID
}

// sessions begins sessions with clients of all nodes, and listens until ctx ends.
func (k *keepers) sessions(ctx context.Context, n, ttl int) {
	k.t.Helper()
	for range n {
		all := k.all()
		s, err := concurrency.NewSession(all, concurrency.WithTTL(ttl))
		k.must(err)
		k.held = append(k.held, s)
		g, err := all.Grant(k.bound(), int64(ttl))
		k.must(err)
		alive, err := all.KeepAlive(ctx, g.ID)
		k.must(err)
		k.running.Go(func() {
			for range alive {
				k.renewed.Add(1)
			}
			if ctx.Err() == nil {
				k.t.Errorf("the channel of lease %x was closed", g.ID)
			}
		})
	}
}

// ended sees that no session has ended.
func (k *keepers) ended() {
	k.t.Helper()
	for i, s := range k.held {
		select {
		case <-s.Done():
			k.t.Errorf("session %d ended", i)
		default:
		}
		_ = s.Close() // its node may be gone
	}
}

// stream renews over streams of a node.
func (k *keepers) stream(ctx context.Context, node int, id clientv3.LeaseID) {
	for ctx.Err() == nil {
		k.judge(ctx, "stream", k.renew(ctx, node, id))
		pause(ctx, 20*time.Millisecond)
	}
}

// renew renews over one stream until that breaks.
func (k *keepers) renew(ctx context.Context, node int, id clientv3.LeaseID) error {
	stream, err := pb.NewLeaseClient(k.clients[node].ActiveConnection()).LeaseKeepAlive(ctx)
	for err == nil {
		if err = stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil && !errors.Is(err, io.EOF) {
			break
		}
		var r *pb.LeaseKeepAliveResponse
		if r, err = stream.Recv(); err == nil && r.TTL <= 0 {
			k.t.Errorf("stream: lease %x is gone", id)
		}
		pause(ctx, 20*time.Millisecond)
	}
	return err
}

// once renews by single calls.
func (k *keepers) once(ctx context.Context, node int, id clientv3.LeaseID) {
	for ctx.Err() == nil {
		_, err := k.clients[node].KeepAliveOnce(ctx, id)
		k.judge(ctx, "renew once", err)
		pause(ctx, 20*time.Millisecond)
	}
}

// grants grants and revokes, each by one call that nobody repeats.
func (k *keepers) grants(ctx context.Context, node int) {
	client := pb.NewLeaseClient(k.clients[node].ActiveConnection())
	for ctx.Err() == nil {
		g, err := client.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 60})
		k.judge(ctx, "grant", err)
		if err == nil {
			_, err = client.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: g.ID})
			k.judge(ctx, "revoke", err)
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// json renews and grants through the gateway.
func (k *keepers) json(ctx context.Context, node int, id clientv3.LeaseID) {
	for ctx.Err() == nil {
		k.post(ctx, node, "/v3/lease/keepalive", fmt.Sprintf(`{"ID":"%d"}`, id))
		k.post(ctx, node, "/v3/lease/grant", `{"TTL":"5"}`)
		pause(ctx, 50*time.Millisecond)
	}
}

// post sends a request to the gateway, whose only errors may be those that Unavailable
// stands for.
func (k *keepers) post(ctx context.Context, node int, path, body string) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+k.Nodes[node].Client+path, bytes.NewReader([]byte(body)))
	if err != nil {
		k.t.Error(err)
		return
	}
	resp, err := http.DefaultClient.Do(request)
	if err != nil {
		return // the node is not there
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return
	}
	type failure struct {
		Code codes.Code `json:"code"`
	}
	var answer struct {
		failure
		Error  *failure `json:"error"`
		Result struct {
			TTL string `json:"TTL"`
		} `json:"result"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		k.t.Errorf("%s: %q: %v", path, text, err)
		return
	}
	code := answer.Code
	if answer.Error != nil {
		code = answer.Error.Code
	}
	refused := resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusServiceUnavailable
	lost := path == "/v3/lease/keepalive" && code == codes.OK && answer.Result.TTL == ""
	if refused || lost || code != codes.OK && code != codes.Unavailable {
		k.t.Errorf("%s: %s: %s", path, resp.Status, text)
	}
}
