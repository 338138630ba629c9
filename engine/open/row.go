package open

import (
	"context"
	"database/sql"
	"net/url"
	"strconv"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/mysqlengine"
	"github.com/pawl-go/pawl/engine/pgengine"
)

// rowConns is how many connections row mode has unless the URL says it: so many
// locks can be held or waited for.
const rowConns = 32

// connections reads how many there may be.
func connections(u *url.URL) (int, error) {
	text := u.Query().Get("connections")
	if !u.Query().Has("connections") {
		return rowConns, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 2 || n > 10000 {
		return 0, wrong("the parameter connections is a number from 2 to 10000")
	}
	return n, nil
}

// only refuses parameters that are for the other mode.
func only(u *url.URL, mode string, others ...string) error {
	for _, name := range others {
		if u.Query().Has(name) {
			return wrong("the parameter %s is not for mode=%s", name, mode)
		}
	}
	return nil
}

func openPostgresRow(ctx context.Context, u *url.URL, config *pgxpool.Config) (engine.Engine, error) {
	n, err := connections(u)
	if err == nil {
		err = only(u, "row", "unlogged", "pooled", "listen")
	}
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(n)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, engine.Unavailable("connect to postgres at "+u.Host, err)
	}
	eng, err := pgengine.NewRow(ctx, pool, &pgengine.RowOptions{Schema: u.Query().Get("schema")})
	if err != nil {
		pool.Close()
		return nil, inOneLine(ctx, "postgres at "+u.Host, err)
	}
	return opened{eng, func() error { pool.Close(); return nil }}, nil
}

func openMySQLRow(ctx context.Context, u *url.URL, config *mysql.Config) (engine.Engine, error) {
	n, err := connections(u)
	if err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, wrong("%v", err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	db.SetConnMaxIdleTime(time.Minute)
	eng, err := mysqlengine.NewRow(ctx, db, &mysqlengine.RowOptions{Prefix: u.Query().Get("prefix")})
	if err != nil {
		db.Close() //nolint:errcheck // nothing was done with it
		return nil, inOneLine(ctx, "mysql at "+u.Host, err)
	}
	return opened{eng, db.Close}, nil
}
