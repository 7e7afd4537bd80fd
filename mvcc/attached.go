package mvcc

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/latchkey-db/latchkey/internal/keys"
)

// AttachedAt returns, in order, the keys that hung on a lease at the view's
// revision. now are those that hang on it in the newest state that the view holds.
// It returns ErrReplaced, the context's error or a fault of storage.
func (v *View) AttachedAt(ctx context.Context, lease int64, now [][]byte) ([][]byte, error) {
	if v.rev >= v.top {
		return slices.SortedFunc(slices.Values(now), bytes.Compare), nil
	}
	attached, err := v.attachedAt(ctx, lease, now)
	if err := v.settle(err); err != nil {
		return nil, err
	}
	return attached, nil
}

func (v *View) attachedAt(ctx context.Context, lease int64, now [][]byte) (list [][]byte, err error) {
	attached := make(map[string]struct{}, len(now))
	for _, key := range now {
		attached[string(key)] = struct{}{}
	}
	changed, _, err := v.changedSince(ctx, keys.Span{}, v.rev, math.MaxInt)
	if err != nil {
		return nil, err
	}
	iter, err := v.db.NewIter(v.layout.versionBounds())
	if err != nil {
		return nil, fmt.Errorf("read past: %w", err)
	}
	defer func() { err = closeAfter(iter, err) }()
	f := newForward(iter)
	for _, key := range changed {
		then, err := v.versionAt(&f, key, v.rev)
		if err != nil {
			return nil, fmt.Errorf("read past of %q: %w", key, err)
		}
		if then.rec.lease == lease {
			attached[string(key)] = struct{}{}
		} else {
			delete(attached, string(key))
		}
	}
	list = make([][]byte, 0, len(attached))
	for _, key := range slices.Sorted(maps.Keys(attached)) {
		list = append(list, []byte(key))
	}
	return list, nil
}
