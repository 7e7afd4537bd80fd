package backup

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

var (
	// ErrForeign is returned for a file that is no backup at all.
	ErrForeign = errors.New("it is neither a backup of Latchkey nor a snapshot of etcd")
	// ErrVersion is returned for a backup of another version of the format.
	ErrVersion = errors.New("it is a backup of a version that this program can't read")
	// ErrCut is returned for a backup whose last part is not there.
	ErrCut = errors.New("the backup is cut")
	// ErrDamaged is returned for a backup that was changed.
	ErrDamaged = errors.New("the backup is damaged")
)

// Contents hears of the records of a backup, in their order. What is nil is not asked for. An
// error ends the reading. No backup is known to be whole before Read has returned.
type Contents struct {
	// Revision comes first.
	Revision func(rev int64) error
	Lease    func(*pb.LeaseGrantRequest) error
	Auth     func(*pb.AuthStatusResponse) error
	Role     func(*authpb.Role) error
	User     func(*authpb.User) error
	Key      func(*mvccpb.KeyValue) error
}

// Summary says what a backup holds.
type Summary struct {
	// Version is that of the format.
	Version string
	// Hash is the CRC-32C of the end record.
	Hash     uint32
	Revision int64
	// Bump is by how much revisions must go on above Revision at least: 0, but for a backup that was
	// recovered from data directories.
	Bump int64
	// Keys, Leases, Users and Roles count the records.
	Keys, Leases, Users, Roles int
	// Size is that of the file in bytes.
	Size int64
}

// Read reads a file as etcdctl has saved it, of size bytes, and checks all of it.
func Read(r io.Reader, size int64, c Contents) (Summary, error) {
	whole := sha256.New()
	in := &reader{
		in: bufio.NewReaderSize(io.TeeReader(io.LimitReader(r, size-sha256.Size), whole), 256<<10), left: size - sha256.Size,
		sum: crc32.New(castagnoli), summary: Summary{Version: Version, Size: size}, to: c,
	}
	if err := in.head(); err != nil {
		return in.summary, err
	}
	// Whatever follows is read by length: one that is wrong may only seem to be cut.
	if size%Align != sha256.Size {
		return in.summary, fmt.Errorf("%w: %d bytes are not a multiple of %d and %d more", ErrCut, size, Align, sha256.Size)
	}
	for end := false; !end; {
		var err error
		if end, err = in.record(); err != nil {
			return in.summary, err
		}
	}
	padding, err := io.ReadAll(in.in)
	if err != nil {
		return in.summary, err
	}
	if len(padding) >= Align || len(bytes.Trim(padding, "\x00")) > 0 {
		return in.summary, fmt.Errorf("%w: there is more behind its end", ErrDamaged)
	}
	var sum [sha256.Size]byte
	if _, err := io.ReadFull(r, sum[:]); err != nil {
		return in.summary, ended(err)
	}
	if !bytes.Equal(sum[:], whole.Sum(nil)) {
		return in.summary, fmt.Errorf("%w: its SHA-256 is wrong", ErrDamaged)
	}
	return in.summary, nil
}

// reader reads all but the SHA-256.
type reader struct {
	in *bufio.Reader
	// left is how many bytes are not read.
	left    int64
	sum     hash.Hash32
	buf     []byte
	summary Summary
	to      Contents
}

// head reads what stands before the records.
func (r *reader) head() error {
	first, err := r.in.Peek(len(magic))
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
		return err
	}
	switch {
	case bytes.HasPrefix(first, []byte(magic)):
	case bytes.HasPrefix(first, []byte(magicName)):
		return ErrVersion
	default:
		return ErrForeign
	}
	if _, err := r.body(uint64(len(magic))); err != nil {
		return err
	}
	rev, err := binary.ReadUvarint(r)
	if err != nil {
		return ended(err)
	}
	r.summary.Revision = int64(rev)
	if r.summary.Revision < 0 {
		return fmt.Errorf("%w: it is of revision %d", ErrDamaged, rev)
	}
	if r.to.Revision != nil {
		return r.to.Revision(r.summary.Revision)
	}
	return nil
}

// record reads one record and reports whether it was the end.
func (r *reader) record() (end bool, err error) {
	sum := r.sum.Sum32()
	letter, err := r.ReadByte()
	if err != nil {
		return false, ended(err)
	}
	size, err := binary.ReadUvarint(r)
	if err != nil {
		return false, ended(err)
	}
	body, err := r.body(size)
	if err != nil {
		return false, err
	}
	switch letter {
	case letterEnd:
		if len(body) != crc32.Size || binary.BigEndian.Uint32(body) != sum {
			return false, fmt.Errorf("%w: its checksum is wrong", ErrDamaged)
		}
		r.summary.Hash = sum
		return true, nil
	case letterBump:
		bump, n := binary.Uvarint(body)
		if r.summary.Bump = int64(bump); n != len(body) || r.summary.Bump <= 0 {
			return false, fmt.Errorf("%w: revisions are to go on by %d", ErrDamaged, bump)
		}
		return false, nil
	case letterLease:
		r.summary.Leases++
		return false, hand(body, &pb.LeaseGrantRequest{}, r.to.Lease)
	case letterAuth:
		return false, hand(body, &pb.AuthStatusResponse{}, r.to.Auth)
	case letterRole:
		r.summary.Roles++
		return false, hand(body, &authpb.Role{}, r.to.Role)
	case letterUser:
		r.summary.Users++
		return false, hand(body, &authpb.User{}, r.to.User)
	case letterKey:
		r.summary.Keys++
		return false, hand(body, &mvccpb.KeyValue{}, r.to.Key)
	case 0:
		// So the padding begins, which stands behind the end.
		return false, fmt.Errorf("%w: there are zeros in the place of a record", ErrDamaged)
	}
	return false, nil
}

// hand gives a message to whom asked for it.
func hand[Message proto.Message](body []byte, m Message, to func(Message) error) error {
	if err := proto.Unmarshal(body, m); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if to == nil {
		return nil
	}
	return to(m)
}

// body reads so many bytes, which are good until the next call.
func (r *reader) body(size uint64) ([]byte, error) {
	if size > uint64(max(r.left, 0)) {
		return nil, fmt.Errorf("%w: its records end in the middle of one", ErrCut)
	}
	if uint64(cap(r.buf)) < size {
		r.buf = make([]byte, size)
	}
	body := r.buf[:size]
	if _, err := io.ReadFull(r.in, body); err != nil {
		return nil, ended(err)
	}
	r.left -= int64(size)
	_, err := r.sum.Write(body)
	return body, err
}

// ReadByte reads one byte.
func (r *reader) ReadByte() (byte, error) {
	b, err := r.in.ReadByte()
	if err == nil {
		r.left--
		_, err = r.sum.Write([]byte{b})
	}
	return b, err
}

// ended says what it means that a backup ends too early.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it has no end record", ErrCut)
	}
	return err
}
