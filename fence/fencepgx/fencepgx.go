// Package fencepgx is package fencesql for pgx.
package fencepgx

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/latchkey-db/latchkey/fence"
	"github.com/latchkey-db/latchkey/fence/internal/statements"
)

// Row is a row of a table with a column last_fencing_token.
type Row = statements.Row

// ErrNoRow is returned for a row that is not there.
var ErrNoRow = statements.ErrNoRow

// Beginner begins transactions, as *pgx.Conn and *pgxpool.Pool do.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Check is fencesql.Check.
func Check(ctx context.Context, tx pgx.Tx, resource string, t fence.Token) error {
	return statements.Check(ctx, transaction{tx}, resource, t)
}

// CheckRow is fencesql.CheckRow.
func CheckRow(ctx context.Context, tx pgx.Tx, row Row, t fence.Token) error {
	return statements.CheckRow(ctx, transaction{tx}, row, t)
}

// Write is fencesql.Write.
func Write(ctx context.Context, db Beginner, resource string, t fence.Token, fn func(pgx.Tx) error) error {
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := Check(ctx, tx, resource, t); err != nil {
			return err
		}
		return fn(tx)
	})
	if err != nil {
		return fmt.Errorf("fence %q: %w", resource, err)
	}
	return nil
}

// transaction is a statements.Tx.
type transaction struct{ tx pgx.Tx }

// Exec runs a statement.
func (t transaction) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := t.tx.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

// Number reads a number.
func (t transaction) Number(ctx context.Context, query string, args ...any) (n int64, found bool, err error) {
	err = t.tx.QueryRow(ctx, query, args...).Scan(&n)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	return n, err == nil, err
}
