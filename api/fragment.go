package api

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// eventsField is the field number of events in a WatchResponse.
const eventsField = 11

// sendFragments sends the events of one answer in pieces of less than maxBytes,
// all but the last marked as fragments. An event is never split, so a piece with
// a single event may be larger.
func sendFragments(resp *pb.WatchResponse, maxBytes int, send func(*pb.WatchResponse) error) error {
	if len(resp.Events) < 2 || proto.Size(resp) < maxBytes {
		return send(resp)
	}
	// What a piece weighs without events. The last one lacks the mark; like etcd,
	// the reckoning passes over that.
	empty := proto.Size(&pb.WatchResponse{Header: resp.Header, WatchId: resp.WatchId, Fragment: true})
	events := resp.Events
	for len(events) > 0 {
		n, size := 0, empty
		for n < len(events) {
			size += protowire.SizeTag(eventsField) + protowire.SizeBytes(proto.Size(events[n]))
			if n > 0 && size >= maxBytes {
				break
			}
			n++
		}
		piece := &pb.WatchResponse{
			Header:   resp.Header,
			WatchId:  resp.WatchId,
			Events:   events[:n:n],
			Fragment: n < len(events),
		}
		if err := send(piece); err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}
