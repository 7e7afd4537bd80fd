// Package fencesql checks fencing tokens in PostgreSQL by way of database/sql, in the
// transaction of the write that they protect: a stale write fails and changes nothing.
//
// A token is kept either for a resource of any name, in a table of its own (Migration,
// Check), or in each row (AddColumn, CheckRow). In both the row stays locked to the end of the
// transaction, so that writers with the same token go one after the other. Where
// transactions are REPEATABLE READ or SERIALIZABLE, a token that was raised meanwhile is
// PostgreSQL's serialization failure (40001); tried again, the transaction is refused as stale.
package fencesql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/latchkey-db/latchkey/fence"
	"github.com/latchkey-db/latchkey/fence/internal/statements"
)

// Row is a row of a table with a column last_fencing_token.
type Row = statements.Row

// ErrNoRow is returned for a row that is not there.
var ErrNoRow = statements.ErrNoRow

// Migration returns the statement that makes the table of Check, if it is not there.
func Migration() string { return statements.Migration }

// AddColumn returns the statement that gives a table the column of CheckRow, if it has
// none. The name may stand behind that of a schema and a point.
func AddColumn(table string) string { return statements.AddColumn(table) }

// Check records the token of a resource in the transaction. With a lower one than recorded it
// returns a *fence.StaleError, and the transaction is to be rolled back; other errors are
// fence.ErrInvalid and the database's.
func Check(ctx context.Context, tx *sql.Tx, resource string, t fence.Token) error {
	return statements.Check(ctx, transaction{tx}, resource, t)
}

// CheckRow is Check for one row, whose token lies beside its data. A row that is not there
// is ErrNoRow.
func CheckRow(ctx context.Context, tx *sql.Tx, row Row, t fence.Token) error {
	return statements.CheckRow(ctx, transaction{tx}, row, t)
}

// Write runs fn in a transaction of the database's default isolation, behind Check, and
// commits what it wrote, or nothing if either fails.
func Write(ctx context.Context, db *sql.DB, resource string, t fence.Token, fn func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("fence %q: begin: %w", resource, err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing behind a commit
	if err := Check(ctx, tx, resource, t); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("fence %q: commit: %w", resource, err)
	}
	return nil
}

// transaction is a statements.Tx.
type transaction struct{ tx *sql.Tx }

// Exec runs a statement.
func (t transaction) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	result, err := t.tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// Number reads a number.
func (t transaction) Number(ctx context.Context, query string, args ...any) (n int64, found bool, err error) {
	err = t.tx.QueryRowContext(ctx, query, args...).Scan(&n)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	return n, err == nil, err
}
