package keys

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

func TestCheckTags(t *testing.T) {
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	check := func() error {
		prefix := []byte("p")
		it, err := db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: PrefixEnd(prefix)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = it.Close() }()
		return CheckTags(it, prefix, "ac\xff")
	}
	set := func(key string) {
		if err := db.Set([]byte(key), nil, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	if err := check(); err != nil {
		t.Error(err)
	}
	for _, key := range []string{"o", "pa1", "pa2", "pc", "p\xffz", "q"} {
		set(key)
	}
	if err := check(); err != nil {
		t.Error(err)
	}
	set("pb9")
	if err := check(); !errors.Is(err, ErrNewer) {
		t.Errorf("an unknown letter: %v", err)
	}
}
