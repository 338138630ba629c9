package pgengine

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pawl-go/pawl/engine"
)

// lender takes a connection of a pool, and waits for one until ctx ends.
type lender func(ctx context.Context) (lent, error)

// lent is a connection that nobody else uses. A lent connection ends in one of two ways.
type lent struct {
	*pgx.Conn
	giveBack func() // which closes it if a transaction is open
	takeOut  func() // of the pool, when it was closed
}

func fromPool(pool *pgxpool.Pool) lender {
	return func(ctx context.Context) (lent, error) {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return lent{}, err
		}
		return lent{conn.Conn(), conn.Release, func() { conn.Hijack() }}, nil
	}
}

func fromDB(db *sql.DB) lender {
	return func(ctx context.Context) (lent, error) {
		conn, err := db.Conn(ctx)
		if err != nil {
			return lent{}, err
		}
		is, err := pgxConn(conn)
		return lent{
			Conn:     is,
			giveBack: func() { conn.Close() },                                           //nolint:errcheck // it says only whether it was open
			takeOut:  func() { conn.Raw(func(any) error { return driver.ErrBadConn }) }, //nolint:errcheck // which is that one
		}, err
	}
}

// pgxConn returns the connection of pgx below a connection of database/sql, or gives the latter
// back.
func pgxConn(conn *sql.Conn) (is *pgx.Conn, err error) {
	err = conn.Raw(func(raw any) error {
		c, ok := raw.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("%w: the database was not opened by the driver of pgx, but by %T", engine.ErrUnsupported, raw)
		}
		is = c.Conn()
		return nil
	})
	if err != nil {
		conn.Close() //nolint:errcheck // there is a better error
	}
	return is, err
}

// with lends a connection for some queries.
func with[T any](ctx context.Context, lend lender, do func(*pgx.Conn) (T, error)) (result T, err error) {
	lent, err := lend(ctx)
	if err != nil {
		return result, err
	}
	defer lent.giveBack()
	return do(lent.Conn)
}
