package backup

import (
	"bufio"
	"encoding/binary"
	"errors"
	"hash"
	"hash/crc32"
	"io"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// Writer writes a backup, without the padding and the SHA-256. It keeps the first error.
type Writer struct {
	to  io.Writer
	sum hash.Hash32
	out *bufio.Writer
	buf []byte
	err error
}

// NewWriter begins a backup of a revision.
func NewWriter(w io.Writer, rev int64) *Writer {
	sum := crc32.New(castagnoli)
	b := &Writer{to: w, sum: sum, out: bufio.NewWriterSize(io.MultiWriter(w, sum), 256<<10)}
	b.bytes([]byte(magic))
	b.bytes(binary.AppendUvarint(nil, uint64(rev)))
	return b
}

// Bump writes by how much revisions must go on above the backup's at least, and with everything below compacted:
// it is not all that there was. It comes first.
func (b *Writer) Bump(revisions int64) {
	b.record(letterBump, binary.AppendUvarint(nil, uint64(revisions)))
}

// Lease writes a lease. It comes before the first key that has it.
func (b *Writer) Lease(l *pb.LeaseGrantRequest) { b.message(letterLease, l) }

// Auth writes whether users are checked, and of which revision they are.
func (b *Writer) Auth(s *pb.AuthStatusResponse) { b.message(letterAuth, s) }

// Role writes a role.
func (b *Writer) Role(r *authpb.Role) { b.message(letterRole, r) }

// User writes a user, with the hash of the password.
func (b *Writer) User(u *authpb.User) { b.message(letterUser, u) }

// Users writes whether users are checked, roles and users, as auth.State.Messages returns them.
func (b *Writer) Users(s *pb.AuthStatusResponse, roles []*authpb.Role, users []*authpb.User) {
	b.Auth(s)
	for _, r := range roles {
		b.Role(r)
	}
	for _, u := range users {
		b.User(u)
	}
}

// Key writes a key. Keys come in rising order.
func (b *Writer) Key(kv *mvccpb.KeyValue) { b.message(letterKey, kv) }

// Err returns the first error so far.
func (b *Writer) Err() error { return b.err }

// Close writes the end, and returns the first error.
func (b *Writer) Close() error {
	if err := errors.Join(b.err, b.out.Flush()); err != nil {
		return err
	}
	_, err := b.to.Write(append([]byte{letterEnd, crc32.Size}, binary.BigEndian.AppendUint32(nil, b.sum.Sum32())...))
	return err
}

func (b *Writer) bytes(p []byte) {
	if b.err == nil {
		_, b.err = b.out.Write(p)
	}
}

func (b *Writer) message(letter byte, m proto.Message) {
	body, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b.buf[:0], m)
	if err != nil {
		b.err = errors.Join(b.err, err)
		return
	}
	b.buf = body
	b.record(letter, body)
}

func (b *Writer) record(letter byte, body []byte) {
	b.bytes([]byte{letter})
	b.bytes(binary.AppendUvarint(nil, uint64(len(body))))
	b.bytes(body)
}
