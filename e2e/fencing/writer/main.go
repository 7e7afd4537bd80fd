// Writer writes to a row of PostgreSQL while it holds a lock, as often as it is told to.
//
//	writer -endpoints 127.0.0.1:2379 -dsn postgres://… -lock accounts/7 -ttl 5s NAME
//
// It takes the lock, says so, and then writes each line of its input into the column owner
// of the row 7 of the table account. With -fence, as by default, each write carries the token of the
// lock; the first that is refused as stale ends the program with exit code 3. It does not
// look whether it still holds the lock: no look is close enough to the write.
package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/latchkey-db/latchkey/fence"
	"github.com/latchkey-db/latchkey/fence/fencesql"
)

// exitStale is the exit code of a writer that was refused.
const exitStale = 3

type writer struct {
	name, endpoints, dsn, lock string
	ttl                        time.Duration
	fenced                     bool
	out                        io.Writer
}

func main() {
	w := writer{out: os.Stdout}
	flag.StringVar(&w.endpoints, "endpoints", "127.0.0.1:2379", "servers, separated by commas")
	flag.StringVar(&w.dsn, "dsn", "", "the database")
	flag.StringVar(&w.lock, "lock", "accounts/7", "the lock's name")
	flag.DurationVar(&w.ttl, "ttl", 5*time.Second, "time to live of the lock's lease, in whole seconds")
	flag.BoolVar(&w.fenced, "fence", true, "have the database check the token")
	flag.Parse()
	w.name = flag.Arg(0)
	err := w.run(context.Background(), os.Stdin)
	switch {
	case errors.Is(err, fence.ErrStale):
		w.say("refused:", err)
		os.Exit(exitStale)
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (w *writer) run(ctx context.Context, in io.Reader) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(w.endpoints, ",")})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	db, err := sql.Open("pgx", w.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if err := db.PingContext(ctx); err != nil {
		return err
	}
	token, err := w.acquire(ctx, client)
	if err != nil {
		return err
	}
	w.say("holds", token)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if err := w.write(ctx, db, token, lines.Text()); err != nil {
			return err
		}
		w.say("wrote", lines.Text())
	}
	return lines.Err()
}

// say prints what happened.
func (w *writer) say(what string, about any) {
	_, _ = fmt.Fprintln(w.out, w.name, what, about) // nobody may listen any more
}

// acquire takes the lock and returns its token: the create revision of the key that holds
// it.
func (w *writer) acquire(ctx context.Context, client *clientv3.Client) (fence.Token, error) {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(w.ttl/time.Second)))
	if err != nil {
		return 0, err
	}
	mutex := concurrency.NewMutex(session, w.lock)
	if err := mutex.Lock(ctx); err != nil {
		return 0, err
	}
	held, err := client.Get(ctx, mutex.Key())
	if err != nil {
		return 0, err
	}
	if len(held.Kvs) == 0 {
		return 0, concurrency.ErrSessionExpired
	}
	return fence.Token(held.Kvs[0].CreateRevision), nil
}

// write writes an owner into the row, in one transaction with the check of the token.
func (w *writer) write(ctx context.Context, db *sql.DB, token fence.Token, owner string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing behind a commit
	if w.fenced {
		row := fencesql.Row{Table: "account", Column: "id", Key: 7}
		if err := fencesql.CheckRow(ctx, tx, row, token); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, `UPDATE account SET owner = $1 WHERE id = 7`, owner); err != nil {
		return err
	}
	return tx.Commit()
}
