package raftlog

import (
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/lni/dragonboat/v4/raftpb"
	"github.com/lni/vfs"
)

// place is a file system and a directory there.
type place struct {
	fs  vfs.FS
	dir string
}

// places are a disk, and memory, whose fsyncs cost nothing.
func places(b *testing.B) map[string]place {
	b.Helper()
	return map[string]place{"memory": {vfs.NewMem(), testDir}, "disk": disk(b)}
}

func disk(b *testing.B) place {
	b.Helper()
	return place{vfs.Default, filepath.Join(b.TempDir(), "log")}
}

// A step with one entry of 256 bytes, and the one behind it in which the commit index moves.
func BenchmarkSave(b *testing.B) {
	for name, at := range places(b) {
		b.Run(name, func(b *testing.B) {
			l := openAt(b, at)
			cmd := make([]byte, 256)
			index := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				index++
				save(b, l, raftpb.Update{
					ShardID: 1, ReplicaID: 1, State: raftpb.State{Term: 1, Commit: index - 1},
					EntriesToSave: []raftpb.Entry{{Index: index, Term: 1, Cmd: cmd}},
				})
				save(b, l, raftpb.Update{ShardID: 1, ReplicaID: 1, State: raftpb.State{Term: 1, Commit: index}})
				if index%20_000 == 0 {
					b.StopTimer()
					compact(b, l, index)
					b.StartTimer()
				}
			}
		})
	}
}

// Steps of many shards at once, which share fsyncs.
func BenchmarkSaveManyShards(b *testing.B) {
	for name, at := range places(b) {
		b.Run(name, func(b *testing.B) {
			l := openAt(b, at)
			cmd := make([]byte, 256)
			var shard atomic.Uint64
			b.ReportAllocs()
			b.SetParallelism(16)
			b.RunParallel(func(p *testing.PB) {
				id := shard.Add(1)
				for index := uint64(1); p.Next(); index++ {
					save(b, l, raftpb.Update{
						ShardID: id, ReplicaID: 1, State: raftpb.State{Term: 1},
						EntriesToSave: []raftpb.Entry{{Index: index, Term: 1, Cmd: cmd}},
					})
				}
			})
		})
	}
}

// What a follower that lags is sent: 1,000 entries of 256 bytes.
func BenchmarkIterateEntries(b *testing.B) {
	l := openAt(b, disk(b))
	var entries []raftpb.Entry
	for i := range uint64(1000) {
		entries = append(entries, raftpb.Entry{Index: 1 + i, Term: 1, Cmd: make([]byte, 256)})
	}
	save(b, l, raftpb.Update{ShardID: 1, ReplicaID: 1, State: raftpb.State{Term: 1}, EntriesToSave: entries})
	b.ReportAllocs()
	for b.Loop() {
		got, _, err := l.IterateEntries(nil, 0, 1, 1, 1, 1001, 1<<30)
		if err != nil || len(got) != len(entries) {
			b.Fatal(len(got), err)
		}
	}
}

// A start behind 50,000 entries of 256 bytes.
func BenchmarkOpen(b *testing.B) {
	at := disk(b)
	l, err := Open(Options{FS: at.fs, Dir: at.dir})
	if err != nil {
		b.Fatal(err)
	}
	for i := range uint64(500) {
		var entries []raftpb.Entry
		for j := range uint64(100) {
			entries = append(entries, raftpb.Entry{Index: 1 + 100*i + j, Term: 1, Cmd: make([]byte, 256)})
		}
		save(b, l, raftpb.Update{ShardID: 1, ReplicaID: 1, State: raftpb.State{Term: 1}, EntriesToSave: entries})
	}
	for b.Loop() {
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
		if l, err = Open(Options{FS: at.fs, Dir: at.dir, Made: true}); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}

func openAt(b *testing.B, at place) *Log {
	b.Helper()
	l, err := Open(Options{FS: at.fs, Dir: at.dir})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := l.Close(); err != nil {
			b.Error(err)
		}
	})
	return l
}

func save(b *testing.B, l *Log, u raftpb.Update) {
	b.Helper()
	if err := l.SaveRaftState([]raftpb.Update{u}, 1); err != nil {
		b.Fatal(err)
	}
}

// compact makes a snapshot and drops what it holds.
func compact(b *testing.B, l *Log, index uint64) {
	b.Helper()
	ss := raftpb.Snapshot{ShardID: 1, Index: index, Term: 1}
	if err := l.SaveSnapshots([]raftpb.Update{{ShardID: 1, ReplicaID: 1, Snapshot: ss}}); err != nil {
		b.Fatal(err)
	}
	if err := l.RemoveEntriesTo(1, 1, index-5000); err != nil {
		b.Fatal(err)
	}
}
