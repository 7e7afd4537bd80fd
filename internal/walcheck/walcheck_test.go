package walcheck

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	pvfs "github.com/cockroachdb/pebble/v2/vfs"
	"github.com/lni/vfs"
)

// writeLog puts one log file with the given content into a store's directory.
func writeLog(t *testing.T, name string, content []byte) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewMem()
	if err := fs.MkdirAll("/raft/host/1/logdb-0", 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := fs.Create("/raft/host/1/logdb-0/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return fs
}

// realLog returns a log that the store's library wrote and its file name.
func realLog(t *testing.T) (string, []byte) {
	t.Helper()
	fs := pvfs.NewMem()
	db, err := pebble.Open("db", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatMinSupported})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 400 {
		size := 50 + 37*i%900
		if i%50 == 49 {
			size = 90_000 // over several blocks
		}
		if err := db.Set(fmt.Appendf(nil, "key%d", i), bytes.Repeat([]byte{byte(i)}, size), pebble.Sync); err != nil {
			t.Fatal(err)
		}
	}
	// The store begins a new log now and then: the largest is taken.
	names, err := fs.List("db")
	if err != nil {
		t.Fatal(err)
	}
	name, log := "", []byte(nil)
	for _, candidate := range names {
		if !strings.HasSuffix(candidate, walSuffix) {
			continue
		}
		f, err := fs.Open("db/" + candidate)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if _, err := b.ReadFrom(f); err != nil {
			t.Fatal(err)
		}
		if b.Len() > len(log) {
			name, log = candidate, b.Bytes()
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if len(log) < 100_000 {
		t.Fatalf("the largest log has %d bytes", len(log))
	}
	return name, log
}

func TestDamageIsToldFromTornTail(t *testing.T) {
	name, log := realLog(t)
	number, ok := walNumber(name)
	if !ok {
		t.Fatalf("log is called %q", name)
	}
	end := tail(log, uint32(number))
	if end < len(log)/2 {
		t.Fatalf("only %d of %d bytes are readable: the format is another", end, len(log))
	}
	check := func(what string, content []byte, damaged bool) {
		t.Helper()
		err := Dirs(writeLog(t, name, content), "/raft")
		if damaged != errors.Is(err, ErrDamaged) || !damaged && err != nil {
			t.Errorf("%s: %v, damaged should be %v", what, err, damaged)
		}
		if damaged && !strings.Contains(fmt.Sprint(err), name) {
			t.Errorf("%s: %v does not name the file", what, err)
		}
	}
	check("whole", log, false)
	for cut := end - 400; cut < end; cut++ {
		check(fmt.Sprintf("cut at %d", cut), log[:cut], false)
	}
	check("zeros behind", append(bytes.Clone(log[:end]), make([]byte, 4<<20)...), false)
	check("cut and zeros behind", append(bytes.Clone(log[:end-5]), make([]byte, 4<<20)...), false)
	for at := 0; at < end/2; at += end / 60 {
		flipped := bytes.Clone(log)
		flipped[at] ^= 0x10
		check(fmt.Sprintf("bit flipped at %d", at), flipped, true)
	}
	hole := bytes.Clone(log)
	clear(hole[end/3 : 2*end/3])
	check("hole", hole, true)
}

// Of the one record in an unfinished fsync any parts may be there, in whichever order they were
// written.
func TestTornRecordOfSeveralChunksIsNoDamage(t *testing.T) {
	name, log := realLog(t)
	number, _ := walNumber(name)
	// The last record that has a middle, and where its parts begin.
	var parts []int
	end := 0
	for at := 0; at < len(log); {
		left := blockSize - at%blockSize
		n, ok := left, left < headerSize
		if !ok {
			if n, ok = chunk(log, at, uint32(number)); !ok {
				break
			}
			switch log[at+typeAt] {
			case firstType:
				parts, end = []int{at}, 0
			case fullType:
			default:
				parts = append(parts, at)
				if log[at+typeAt] == lastType {
					end = at + n
				}
			}
		}
		at += n
		if end > 0 && len(parts) > 2 {
			break
		}
	}
	if end == 0 || len(parts) < 3 {
		t.Fatalf("no record of several chunks: %d", parts)
	}
	parts = append(parts, end)
	for kept := range 1 << (len(parts) - 1) {
		torn := bytes.Clone(log[:end])
		for i := range len(parts) - 1 {
			if kept&(1<<i) == 0 {
				clear(torn[parts[i]:parts[i+1]])
			}
		}
		if err := Dirs(writeLog(t, name, torn), "/raft"); err != nil {
			t.Errorf("parts %b of a record are left: %v", kept, err)
		}
	}
}

// A log file that was used before has the records of its former life behind its
// end.
func TestRecycledLogIsNoDamage(t *testing.T) {
	name, log := realLog(t)
	number, _ := walNumber(name)
	end := tail(log, uint32(number))
	renamed := fmt.Sprintf("%06d%s", number+1, walSuffix)
	if err := Dirs(writeLog(t, renamed, log[:end]), "/raft"); err != nil {
		t.Errorf("only old records: %v", err)
	}
}

func TestMissingDirectoryIsFine(t *testing.T) {
	if err := Dirs(vfs.NewMem(), "/raft"); err != nil {
		t.Error(err)
	}
}
