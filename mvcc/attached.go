package mvcc

import (
	"bytes"
	"context"
	"fmt"
	"maps"
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

func (v *View) attachedAt(ctx context.Context, lease int64, now [][]byte) ([][]byte, error) {
	attached := make(map[string]struct{}, len(now))
	for _, key := range now {
		attached[string(key)] = struct{}{}
	}
	changed, err := v.changedSince(v.rev)
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	for key := range changed {
		delete(attached, key)
		err := v.eachPast(ctx, keys.Point([]byte(key)), v.rev, func(p *pastVersion) bool {
			if p.rec.lease == lease {
				attached[key] = struct{}{}
			}
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	list := make([][]byte, 0, len(attached))
	for _, key := range slices.Sorted(maps.Keys(attached)) {
		list = append(list, []byte(key))
	}
	return list, nil
}

// changedSince returns the keys with changes above revision rev, up to the view's
// state.
func (v *View) changedSince(rev int64) (changed map[string]struct{}, err error) {
	history, err := v.db.NewIter(v.layout.historyBounds(stamp{rev: rev + 1}, v.top))
	if err != nil {
		return nil, err
	}
	defer func() { err = closeAfter(history, err) }()
	changed = make(map[string]struct{})
	for ok := history.First(); ok; ok = history.Next() {
		key, err := history.ValueAndErr()
		if err != nil {
			return nil, err
		}
		changed[string(key)] = struct{}{}
	}
	return changed, history.Error()
}
