//go:build clients

package fencing

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/latchkey-db/latchkey/e2e/harness"
	"github.com/latchkey-db/latchkey/fence"
	"github.com/latchkey-db/latchkey/fence/fencepgx"
	"github.com/latchkey-db/latchkey/fence/fencesql"
)

// transaction is one of either library.
type transaction struct {
	check    func(resource string, t fence.Token) error
	checkRow func(row fencesql.Row, t fence.Token) error
	exec     func(statement string) error
	commit   func() error
	rollback func()
}

// library begins transactions, each on a connection of its own.
type library func(t *testing.T, dsn string) transaction

func throughSQL(t *testing.T, dsn string) transaction {
	t.Helper()
	ctx := t.Context()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	return transaction{
		check:    func(resource string, token fence.Token) error { return fencesql.Check(ctx, tx, resource, token) },
		checkRow: func(row fencesql.Row, token fence.Token) error { return fencesql.CheckRow(ctx, tx, row, token) },
		exec:     func(statement string) error { _, err := tx.ExecContext(ctx, statement); return err },
		commit:   tx.Commit,
		rollback: func() { _ = tx.Rollback() },
	}
}

func throughPGX(t *testing.T, dsn string) transaction {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return transaction{
		check:    func(resource string, token fence.Token) error { return fencepgx.Check(ctx, tx, resource, token) },
		checkRow: func(row fencesql.Row, token fence.Token) error { return fencepgx.CheckRow(ctx, tx, row, token) },
		exec:     func(statement string) error { _, err := tx.Exec(ctx, statement); return err },
		commit:   func() error { return tx.Commit(ctx) },
		rollback: func() { _ = tx.Rollback(ctx) },
	}
}

// fenced checks the token of the row 7, or of a resource.
type fenced func(x *transaction, t fence.Token) error

func TestPostgres(t *testing.T) {
	dsn := postgres(t)
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for range 2 { // repeated, it does nothing
		if _, err := db.ExecContext(t.Context(), fencesql.Migration()); err != nil {
			t.Fatal(err)
		}
	}
	for name, begin := range map[string]library{"sql": throughSQL, "pgx": throughPGX} {
		for kind, check := range map[string]fenced{
			"resource": func(x *transaction, token fence.Token) error { return x.check("the account 7", token) },
			"row": func(x *transaction, token fence.Token) error {
				return x.checkRow(fencesql.Row{Table: "account", Column: "id", Key: 7}, token)
			},
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				makeAccount(t, db)
				if _, err := db.ExecContext(t.Context(), `DELETE FROM latchkey_fence`); err != nil {
					t.Fatal(err)
				}
				testOrder(t, dsn, db, begin, check)
				testSideBySide(t, dsn, begin, check)
				testRepeatableRead(t, dsn, begin, check)
			})
		}
		t.Run(name+"/names", func(t *testing.T) { testNames(t, dsn, db, begin) })
	}
	t.Run("write", func(t *testing.T) { testWrite(t, dsn, db) })
}

// testOrder has tokens come one after the other.
func testOrder(t *testing.T, dsn string, db *sql.DB, begin library, check fenced) {
	t.Helper()
	for _, step := range []struct {
		token  fence.Token
		newest fence.Token // if it is refused
	}{{token: 5}, {token: 5}, {token: 4, newest: 5}, {token: 9}, {token: 5, newest: 9}} {
		x := begin(t, dsn)
		err := x.exec(`UPDATE account SET owner = 'written' WHERE id = 7`)
		if err == nil {
			err = check(&x, step.token)
		}
		var owner string
		var stale *fence.StaleError
		switch {
		case step.newest == 0:
			if err := errors.Join(err, x.commit()); err != nil {
				t.Fatalf("%d: %v", step.token, err)
			}
			if _, err := db.ExecContext(t.Context(), `UPDATE account SET owner = 'nobody' WHERE id = 7`); err != nil {
				t.Fatal(err)
			}
		case !errors.As(err, &stale) || stale.Token != step.token || stale.Newest != step.newest:
			t.Fatalf("%d behind %d: %v", step.token, step.newest, err)
		default:
			x.rollback()
			if err := db.QueryRowContext(t.Context(), `SELECT owner FROM account WHERE id = 7`).Scan(&owner); err != nil || owner != "nobody" {
				t.Fatalf("a stale write changed the row to %q (%v)", owner, err)
			}
		}
	}
	x := begin(t, dsn)
	for _, token := range []fence.Token{0, -1} {
		if err := check(&x, token); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%d: %v", token, err)
		}
	}
	x.rollback()
}

// testSideBySide has tokens come while the transaction of another is under way. The newest
// before is 9.
func testSideBySide(t *testing.T, dsn string, begin library, check fenced) {
	t.Helper()
	for _, tc := range []struct {
		what          string
		first, second fence.Token
		commit, stale bool
	}{
		{"a lower one, then a higher one", 10, 11, true, false},
		{"a higher one, then a lower one", 20, 15, true, true},
		{"a higher one that is rolled back, then a lower one", 30, 25, false, false},
	} {
		x, y := begin(t, dsn), begin(t, dsn)
		if err := check(&x, tc.first); err != nil {
			t.Fatalf("%s: %v", tc.what, err)
		}
		done := make(chan error, 1)
		go func() { done <- check(&y, tc.second) }()
		harness.Still(t, tc.what+": the second did not wait", done)
		if tc.commit {
			if err := x.commit(); err != nil {
				t.Fatal(err)
			}
		} else {
			x.rollback()
		}
		err := harness.Within(t, tc.what, harness.LongWait, done)
		if tc.stale != errors.Is(err, fence.ErrStale) || !tc.stale && err != nil {
			t.Errorf("%s: %v", tc.what, err)
		}
		if tc.stale {
			y.rollback()
		} else if err := y.commit(); err != nil {
			t.Error(err)
		}
	}
}

// testRepeatableRead raises the token behind a transaction's snapshot.
func testRepeatableRead(t *testing.T, dsn string, begin library, check fenced) {
	t.Helper()
	old, behind := begin(t, dsn), begin(t, dsn)
	for _, statement := range []string{`SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`, `SELECT count(*) FROM account`} {
		if err := old.exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(check(&behind, 50), behind.commit()); err != nil {
		t.Fatal(err)
	}
	var failed *pgconn.PgError
	if err := check(&old, 40); !errors.As(err, &failed) || failed.Code != "40001" {
		t.Errorf("behind the snapshot: %v, want a serialization failure", err)
	}
	old.rollback()
	again := begin(t, dsn)
	defer again.rollback()
	if err := check(&again, 40); !errors.Is(err, fence.ErrStale) {
		t.Errorf("tried again: %v", err)
	}
}

// testNames has rows and tables of unusual names, and rows without a token.
func testNames(t *testing.T, dsn string, db *sql.DB, begin library) {
	t.Helper()
	for _, statement := range []string{
		`DROP SCHEMA IF EXISTS "the bank" CASCADE`, `CREATE SCHEMA "the bank"`,
		`CREATE TABLE "the bank"."a""b" ("the id" TEXT PRIMARY KEY, last_fencing_token BIGINT)`,
		`INSERT INTO "the bank"."a""b" VALUES ('x', NULL)`,
		fencesql.AddColumn(`the bank.a"b`), // it is there
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	row := fencesql.Row{Table: `the bank.a"b`, Column: "the id", Key: "x"}
	x := begin(t, dsn)
	defer x.rollback()
	if err := x.checkRow(row, 3); err != nil {
		t.Fatal(err)
	}
	if err := x.checkRow(row, 2); !errors.Is(err, fence.ErrStale) {
		t.Errorf("stale: %v", err)
	}
	row.Key = "y"
	if err := x.checkRow(row, 3); !errors.Is(err, fencesql.ErrNoRow) {
		t.Errorf("a row that is not there: %v", err)
	}
}

// testWrite writes behind a check, all or nothing.
func testWrite(t *testing.T, dsn string, db *sql.DB) {
	t.Helper()
	ctx := t.Context()
	makeAccount(t, db)
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	bySQL := func(token fence.Token, statement string) error {
		return fencesql.Write(ctx, db, "w", token, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, statement)
			return err
		})
	}
	byPGX := func(token fence.Token, statement string) error {
		return fencepgx.Write(ctx, conn, "w", token, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, statement)
			return err
		})
	}
	owner := func() (owner string) {
		if err := db.QueryRowContext(ctx, `SELECT owner FROM account WHERE id = 8`).Scan(&owner); err != nil {
			t.Fatal(err)
		}
		return owner
	}
	token := fence.Token(0)
	for _, write := range []func(fence.Token, string) error{bySQL, byPGX} {
		token += 10
		if err := write(token, `UPDATE account SET owner = 'first' WHERE id = 8`); err != nil || owner() != "first" {
			t.Errorf("%v, and the row has %q", err, owner())
		}
		if err := write(token-1, `UPDATE account SET owner = 'second' WHERE id = 8`); !errors.Is(err, fence.ErrStale) || owner() != "first" {
			t.Errorf("stale: %v, and the row has %q", err, owner())
		}
		if err := write(token+1, `UPDATE nothing SET owner = 'third'`); err == nil {
			t.Error("a write that fails is not told")
		}
		if err := write(token, `UPDATE account SET owner = 'fourth' WHERE id = 8`); err != nil || owner() != "fourth" {
			t.Errorf("behind a write that failed: %v, and the row has %q", err, owner())
		}
	}
}
