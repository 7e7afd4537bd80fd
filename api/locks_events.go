package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	latchkeyv1 "github.com/latchkey-db/latchkey/api/latchkey/v1"
	"github.com/latchkey-db/latchkey/lock"
)

// lastEventID names the header by which a browser's EventSource, connecting again, tells the last
// id that it has had.
const lastEventID = "Last-Event-ID"

// watch sends what happens to a lock as server-sent events. The id is a revision, and comes behind
// all events of that: who goes on from the id that it has had last misses nothing, and may hear
// again of a part of a revision.
func (a *locksAPI) watch(w http.ResponseWriter, r *http.Request, name string) (int, any, error) {
	from, err := watchFrom(r)
	if err != nil {
		return 0, nil, err
	}
	stream, err := a.calls.Watch(r.Context(), &latchkeyv1.WatchRequest{LockKey: name, FromRevision: from})
	if err != nil {
		return 0, nil, err
	}
	// With the first message the watch is there.
	resp, err := stream.Recv()
	if err != nil {
		return 0, nil, err
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	for err == nil {
		if err = sendEvents(w, name, resp); err == nil {
			err = control.Flush()
		}
		if err == nil {
			resp, err = stream.Recv()
		}
	}
	if r.Context().Err() == nil {
		_ = writeEvent(w, "closed", errorOf(lockStatus(err))) // a client that is gone needs no answer
	}
	return 0, nil, nil
}

// watchFrom returns the revision from which a request asks for events.
func watchFrom(r *http.Request) (int64, error) {
	if last := r.Header.Get(lastEventID); last != "" {
		rev, err := strconv.ParseInt(last, 10, 63)
		if err != nil || rev < 0 {
			return 0, &lock.FieldError{Field: lastEventID, Reason: "is no revision"}
		}
		return rev + 1, nil
	}
	query := r.URL.Query()
	if !query.Has("from") {
		return 0, nil
	}
	rev, err := strconv.ParseInt(query.Get("from"), 10, 64)
	if err != nil || rev < 0 {
		return 0, &lock.FieldError{Field: "from", Reason: "is no revision"}
	}
	return rev, nil
}

// sendEvents sends the events of a revision.
func sendEvents(w http.ResponseWriter, name string, resp *latchkeyv1.WatchResponse) error {
	for _, ev := range resp.GetEvents() {
		kind := string(eventNames[ev.GetKind()])
		err := writeEvent(w, kind, eventJSON{
			Event: kind, LockKey: name, Revision: resp.GetRevision(), placeJSON: placeJSONOf(ev.GetPlace()), Reason: ev.GetReason(),
		})
		if err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "id: %d\n\n", resp.GetRevision())
	return err
}

// writeEvent writes an event without an id.
func writeEvent(w http.ResponseWriter, kind string, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return errors.Join(errPanic, err)
	}
	var event bytes.Buffer
	fmt.Fprintf(&event, "event: %s\ndata: %s\n\n", kind, text)
	_, err = w.Write(event.Bytes())
	return err
}
