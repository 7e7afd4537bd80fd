package mixed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// httpParty calls the JSON form of the lock API: each lock has a lease of its own.
type httpParty struct {
	e      *env
	nodes  []string
	client string
	calls  int
	c      *http.Client
	// life ends when the party dies.
	life context.Context
	end  context.CancelFunc
}

func openHTTP(_ context.Context, e *env, nodes []string) (party, error) {
	p := &httpParty{e: e, nodes: nodes, client: e.unique("http"), c: &http.Client{Transport: &http.Transport{}}}
	p.life, p.end = context.WithCancel(context.Background())
	return p, nil
}

// statusError is an answer that is none of what was asked for.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return fmt.Sprintf("%d: %s", e.status, e.text) }

// post makes a call at a node, for as long as the party lives.
func (p *httpParty) post(ctx context.Context, node, call string, body, answer any) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(p.life, cancel)
	defer stop()
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+node+"/api/v1/locks/"+call, bytes.NewReader(text))
	if err != nil {
		return err
	}
	resp, err := p.c.Do(req)
	if err != nil {
		return err
	}
	var said bytes.Buffer
	_, err = said.ReadFrom(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return &statusError{resp.StatusCode, said.String()}
	}
	return json.Unmarshal(said.Bytes(), answer)
}

// anywhere makes a call again, at one node after the other, until it is answered or ctx ends. A
// node that does not answer is given up after some time.
func (p *httpParty) anywhere(ctx context.Context, each time.Duration, call string, body, answer any) error {
	for i := 0; ; i++ {
		try, cancel := context.WithTimeout(ctx, each)
		err := p.post(try, p.nodes[i%len(p.nodes)], call, body, answer)
		cancel()
		var status *statusError
		if err == nil || errors.As(err, &status) && status.status != http.StatusServiceUnavailable {
			return err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil || p.life.Err() != nil {
			return errors.Join(err, p.life.Err())
		}
	}
}

// httpGrant is a lock of an HTTP party.
type httpGrant struct {
	lease
	p       *httpParty
	lock    string
	fencing int64
	at      time.Time
}

// epoch returns the moment of a time of day, which servers of this machine tell.
func epoch(ms int64) time.Time {
	now := time.Now()
	return now.Add(time.UnixMilli(ms).Sub(now.Round(0)))
}

// acquire makes the same request again, at another node, where the answer is lost.
func (p *httpParty) acquire(ctx context.Context, lock string, m mode) (grant, error) {
	p.calls++
	request := map[string]any{
		"lock_key": lock, "client_id": p.client, "request_id": fmt.Sprint(p.calls),
		"lease_time_ms": ttl.Milliseconds(), "block_time_ms": left(ctx).Milliseconds(),
	}
	if m.shared {
		request["mode"] = "shared"
	}
	if m.of > 0 {
		request["permits"], request["of"] = m.permits, m.of
	}
	var answer struct {
		Acquired     bool  `json:"acquired"`
		FencingToken int64 `json:"fencing_token"`
		Expires      int64 `json:"expires_at_epoch_ms"`
	}
	err := p.anywhere(ctx, 2*ttl, "acquire", request, &answer)
	at := time.Now()
	var status *statusError
	if errors.As(err, &status) && status.status == http.StatusConflict {
		return nil, errNotGranted
	}
	if err != nil {
		return nil, err
	}
	g := &httpGrant{p: p, lock: lock, fencing: answer.FencingToken, at: at}
	g.e, g.name, g.until = p.e, fmt.Sprintf("%s of %s with token %d", lock, p.client, g.fencing), epoch(answer.Expires)
	g.ask = g.extend
	return g, nil
}

// extend renews the lock, wherever it is answered.
func (g *httpGrant) extend(ctx context.Context, _ time.Time) (time.Time, error) {
	var answer struct {
		Expires int64 `json:"new_expires_at"`
	}
	err := g.p.anywhere(ctx, renewal/2, "renew", g.named(), &answer)
	switch {
	case forbidden(err):
		return time.Time{}, errGone
	case err != nil:
		return time.Time{}, err
	}
	return epoch(answer.Expires), nil
}

func (g *httpGrant) named() map[string]any {
	return map[string]any{"lock_key": g.lock, "client_id": g.p.client, "fencing_token": g.fencing}
}

func forbidden(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.status == http.StatusForbidden
}

func (g *httpGrant) token() int64    { return g.fencing }
func (g *httpGrant) told() time.Time { return g.at }

// release releases the lock, twice if an answer is lost.
func (g *httpGrant) release(ctx context.Context) error {
	var answer struct{}
	err := g.p.anywhere(ctx, patience/2, "release", g.named(), &answer)
	if forbidden(err) {
		g.gone("was released")
	}
	return err
}

func (p *httpParty) still() {} // it renews when it is asked to

func (p *httpParty) die() {
	p.end()
	p.c.CloseIdleConnections()
}

func (p *httpParty) leave(context.Context) error {
	p.die()
	return nil
}
