// Package statements is the SQL that fences writes to PostgreSQL, whatever library sends it.
package statements

import (
	"context"
	_ "embed" // the migration
	"errors"
	"fmt"
	"strings"

	"github.com/latchkey-db/latchkey/fence"
)

// Migration makes the table that has a token for each resource, if it is not there.
//
//go:embed migration.sql
var Migration string

// Tx is a transaction.
type Tx interface {
	// Exec returns how many rows the statement changed.
	Exec(ctx context.Context, sql string, args ...any) (int64, error)
	// Number returns the number that the statement selects; found is false where it selects
	// no row.
	Number(ctx context.Context, sql string, args ...any) (n int64, found bool, err error)
}

// Row is a row of a table with a column last_fencing_token.
type Row struct {
	// Table is its name, perhaps behind that of its schema and a point.
	Table string
	// Column is the one that tells the row from all others, Key its value there.
	Column string
	Key    any
}

// ErrNoRow is returned for a row that is not there.
var ErrNoRow = errors.New("fence: no such row")

// check raises a resource's token. The row stays locked until the transaction ends, so that
// writers of a resource go one after the other, and one with a lower token finds the
// higher one even if that was being written meanwhile.
const check = `INSERT INTO latchkey_fence AS f (resource, last_fencing_token) VALUES ($1, $2)
ON CONFLICT (resource) DO UPDATE SET last_fencing_token = EXCLUDED.last_fencing_token
WHERE f.last_fencing_token <= EXCLUDED.last_fencing_token`

// Check is fencesql.Check.
func Check(ctx context.Context, tx Tx, resource string, t fence.Token) error {
	if err := t.Valid(); err != nil {
		return err
	}
	changed, err := tx.Exec(ctx, check, resource, int64(t))
	if err != nil {
		return fmt.Errorf("fence %q: %w", resource, err)
	}
	if changed > 0 {
		return nil
	}
	newest, _, err := tx.Number(ctx, `SELECT last_fencing_token FROM latchkey_fence WHERE resource = $1`, resource)
	if err != nil {
		return fmt.Errorf("fence %q: %w", resource, err)
	}
	return &fence.StaleError{Resource: resource, Token: t, Newest: fence.Token(newest)}
}

// CheckRow is fencesql.CheckRow.
func CheckRow(ctx context.Context, tx Tx, row Row, t fence.Token) error {
	if err := t.Valid(); err != nil {
		return err
	}
	table, column := quoteTable(row.Table), quote(row.Column)
	name := fmt.Sprintf("%s[%v]", row.Table, row.Key)
	changed, err := tx.Exec(ctx, fmt.Sprintf(
		`UPDATE %s SET last_fencing_token = $2 WHERE %s = $1 AND COALESCE(last_fencing_token, 0) <= $2`, table, column,
	), row.Key, int64(t))
	if err != nil {
		return fmt.Errorf("fence %s: %w", name, err)
	}
	if changed > 0 {
		return nil
	}
	newest, found, err := tx.Number(ctx, fmt.Sprintf(`SELECT COALESCE(last_fencing_token, 0) FROM %s WHERE %s = $1`, table, column), row.Key)
	switch {
	case err != nil:
		return fmt.Errorf("fence %s: %w", name, err)
	case !found:
		return fmt.Errorf("fence %s: %w", name, ErrNoRow)
	}
	return &fence.StaleError{Resource: name, Token: t, Newest: fence.Token(newest)}
}

// AddColumn returns what gives a table the column that CheckRow needs, if it has none.
func AddColumn(table string) string {
	return fmt.Sprintf(`ALTER TABLE %s ADD COLUMN IF NOT EXISTS last_fencing_token BIGINT NOT NULL DEFAULT 0`, quoteTable(table))
}

func quoteTable(name string) string {
	schema, table, ok := strings.Cut(name, ".")
	if !ok {
		return quote(name)
	}
	return quote(schema) + "." + quote(table)
}

func quote(identifier string) string { return `"` + strings.ReplaceAll(identifier, `"`, `""`) + `"` }
