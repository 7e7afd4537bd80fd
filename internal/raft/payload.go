package raft

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// Fields of a message that this version does not know are left out before it is proposed: a
// newer client sent them, and etcd ignores such fields. So those that are in the log were
// written by a newer node, which knows them and goes by them.

// EncodeRequest returns the payload of a command that is one of etcd's messages.
func EncodeRequest(m proto.Message) ([]byte, error) {
	if hasUnknown(m.ProtoReflect()) {
		m = proto.Clone(m)
		dropUnknown(m.ProtoReflect())
	}
	payload, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	return payload, nil
}

// DecodeRequest reads what EncodeRequest wrote into m. It returns keys.ErrNewer if there are
// fields that this version does not know. Where what it knows is as long as the payload there are none: to go through all
// fields takes as long as to read them.
func DecodeRequest(payload []byte, m proto.Message) error {
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(payload, m); err != nil {
		return fmt.Errorf("decode command: %w", err)
	}
	if proto.Size(m) == len(payload) {
		return nil
	}
	if err := proto.Unmarshal(payload, m); err != nil {
		return fmt.Errorf("decode command: %w", err)
	}
	if hasUnknown(m.ProtoReflect()) {
		return fmt.Errorf("decode command: fields of %s: %w", m.ProtoReflect().Descriptor().Name(), keys.ErrNewer)
	}
	return nil
}

func hasUnknown(m protoreflect.Message) bool {
	found := len(m.GetUnknown()) > 0
	eachMessage(m, func(inner protoreflect.Message) bool {
		found = found || hasUnknown(inner)
		return !found
	})
	return found
}

func dropUnknown(m protoreflect.Message) {
	m.SetUnknown(nil)
	eachMessage(m, func(inner protoreflect.Message) bool {
		dropUnknown(inner)
		return true
	})
}

// eachMessage calls fn for the messages in fields of m, for as long as it returns true.
// etcd's requests have no maps of messages.
func eachMessage(m protoreflect.Message, fn func(protoreflect.Message) bool) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		switch {
		case field.Message() == nil || field.IsMap() || !m.Has(field):
		case field.IsList():
			for j, list := 0, m.Get(field).List(); j < list.Len(); j++ {
				if !fn(list.Get(j).Message()) {
					return
				}
			}
		case !fn(m.Get(field).Message()):
			return
		}
	}
}
