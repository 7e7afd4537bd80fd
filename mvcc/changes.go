package mvcc

import (
	"context"
	"fmt"
)

// ChangesBack calls fn with the revisions above the compaction that changed something,
// newest first and each once, until fn returns false. It returns ErrReplaced, the context's
// error or a fault of storage.
func (v *View) ChangesBack(ctx context.Context, fn func(rev int64) bool) error {
	return v.settle(v.changesBack(ctx, fn))
}

func (v *View) changesBack(ctx context.Context, fn func(rev int64) bool) (err error) {
	history, err := v.db.NewIter(v.layout.historyBounds(stamp{rev: v.compact + 1}, v.top))
	if err != nil {
		return fmt.Errorf("read history: %w", err)
	}
	defer func() { err = closeAfter(history, err) }()
	last := int64(-1)
	for ok := history.Last(); ok; ok = history.Prev() {
		if err := ctx.Err(); err != nil {
			return err
		}
		at, _, err := v.layout.splitHistory(history.Key())
		if err != nil {
			return err
		}
		if at.rev != last && !fn(at.rev) {
			return nil
		}
		last = at.rev
	}
	return history.Error()
}
