package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
)

// printer prints tables, or JSON.
type printer struct {
	table *tabwriter.Writer
	json  *json.Encoder
	err   error
}

func newPrinter(out io.Writer, asJSON bool) *printer {
	p := &printer{table: tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
	if asJSON {
		p.json = json.NewEncoder(out)
	}
	return p
}

// flush prints what waits, and returns the first error.
func (p *printer) flush() error {
	p.note(p.table.Flush())
	return p.err
}

// columns prints the head of a table.
func (p *printer) columns(names ...any) {
	if p.json == nil {
		p.row(names...)
	}
}

func (p *printer) row(fields ...any) {
	text := make([]string, len(fields))
	for i, f := range fields {
		if text[i] = fmt.Sprint(f); text[i] == "" {
			text[i] = "-"
		}
	}
	_, err := fmt.Fprintln(p.table, strings.Join(text, "\t"))
	p.note(err)
}

// note keeps the first error.
func (p *printer) note(err error) {
	if p.err == nil {
		p.err = err
	}
}

// place is one in the queue of a lock, as JSON.
type place struct {
	Client    string `json:"client_id,omitempty"`
	Token     int64  `json:"fencing_token"`
	Session   int64  `json:"session_id"`
	Mode      string `json:"mode,omitempty"`
	Permits   int32  `json:"permits,omitempty"`
	Of        int32  `json:"of,omitempty"`
	Holds     int32  `json:"holds,omitempty"`
	Since     int64  `json:"since_epoch_ms,omitempty"`
	Waited    int64  `json:"waited_ms,omitempty"`
	Remaining int64  `json:"remaining_ms,omitempty"`
	Metadata  string `json:"metadata,omitempty"`
	Key       string `json:"key"`
}

func placeOf(p *latchkeyv1.Place) place {
	return place{
		Client: p.ClientId, Token: p.FencingToken, Session: p.SessionId, Mode: mode(p), Permits: p.Permits, Of: p.Of,
		Holds: p.Holds, Since: p.SinceEpochMs, Waited: p.WaitedMs, Remaining: p.RemainingMs, Metadata: p.Metadata, Key: string(p.Key),
	}
}

func placesOf(all []*latchkeyv1.Place) []place {
	places := make([]place, len(all))
	for i, p := range all {
		places[i] = placeOf(p)
	}
	return places
}

// mode is how a place holds the lock, as people read it.
func mode(p *latchkeyv1.Place) string {
	if p.Of > 0 {
		return fmt.Sprintf("%d of %d", p.Permits, p.Of)
	}
	if p.Mode == latchkeyv1.Mode_MODE_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(p.Mode.String())
}

// who is whoever has a place: the client, or where that did not say, its key.
func who(p *latchkeyv1.Place) string {
	if p.ClientId != "" {
		return p.ClientId
	}
	return string(p.Key)
}

// summary prints a lock of a list.
func (p *printer) summary(l *latchkeyv1.LockSummary) {
	if p.json != nil {
		p.encode(struct {
			Name    string  `json:"lock_key"`
			Holders []place `json:"holders"`
			Waiters int32   `json:"waiters"`
		}{l.LockKey, placesOf(l.Holders), l.Waiters})
		return
	}
	var names []string
	token := ""
	for _, h := range l.Holders {
		names = append(names, who(h))
		token = fmt.Sprint(h.FencingToken)
	}
	p.row(l.LockKey, strings.Join(names, ","), token, l.Waiters)
}

// lock prints a lock with all its places.
func (p *printer) lock(l *latchkeyv1.Lock) {
	if p.json != nil {
		p.encode(struct {
			Name     string  `json:"lock_key"`
			Holders  []place `json:"holders"`
			Waiters  []place `json:"waiters"`
			Revision int64   `json:"revision"`
		}{l.LockKey, placesOf(l.Holders), placesOf(l.Waiters), l.Revision})
		return
	}
	p.columns("PLACE", "CLIENT", "TOKEN", "MODE", "FOR", "REMAINING")
	for _, h := range l.Holders {
		p.row("holder", who(h), h.FencingToken, mode(h), milliseconds(h.WaitedMs), milliseconds(h.RemainingMs))
	}
	for i, w := range l.Waiters {
		p.row(fmt.Sprint("waiter ", i+1), who(w), w.FencingToken, mode(w), milliseconds(w.WaitedMs), "")
	}
}

func milliseconds(ms int64) string {
	if ms == 0 {
		return ""
	}
	return (time.Duration(ms) * time.Millisecond).Round(time.Second / 10).String()
}

func (p *printer) encode(v any) { p.note(p.json.Encode(v)) }

// event prints what has happened at a revision.
func (p *printer) event(rev int64, e *latchkeyv1.LockEvent) {
	kind := strings.ToLower(e.Kind.String())
	if p.json != nil {
		p.encode(struct {
			Revision int64  `json:"revision"`
			Event    string `json:"event"`
			Place    place  `json:"place"`
			Reason   string `json:"reason,omitempty"`
		}{rev, kind, placeOf(e.Place), e.Reason})
		return
	}
	p.row(rev, kind, e.Place.GetFencingToken(), who(e.Place), e.Reason)
}
