package open

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/nats-io/nats.go"
	_ "github.com/ncruces/go-sqlite3/driver" // "sqlite3"
	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/engine"
)

// Database is a SQL database of a URL. Database is safe for concurrent use.
type Database struct {
	DB      *sql.DB
	Dialect dialect.Dialect // of DB

	what   string // for errors
	within time.Duration
}

// Close closes the database, and waits for the statements that are under way.
func (d *Database) Close() error { return d.DB.Close() }

// twin is the form of a scheme for a service that keeps no locks: it has fewer parameters.
type twin[T any] struct {
	params []string
	open   func(context.Context, *url.URL) (T, error)
}

var postgresTwin = twin[*Database]{slices.Concat([]string{"connections", "pooled"}, optionalTLS), postgresDatabase}

const databaseKind = "SQL database" // in errors

var databaseTwins = map[string]twin[*Database]{
	"postgres":   postgresTwin,
	"postgresql": postgresTwin,
	"mysql":      {slices.Concat([]string{"connections"}, optionalTLS), mysqlDatabase},
	"sqlite":     {nil, sqliteDatabase},
}

var natsTwins = map[string]twin[*nats.Conn]{"nats": {optionalTLS, natsConn}}

var redisTwins = map[string]twin[rueidis.Client]{
	"redis":         {nil, redisClient(redisServer)},
	"rediss":        {tlsParams, redisClient(redisServer)},
	"redis+cluster": {optionalTLS, redisClient(redisCluster)},
	"redis+sentinel": {
		slices.Concat([]string{"sentinel-user", "sentinel-password-env", "sentinel-password-file"}, optionalTLS),
		redisClient(redisSentinel),
	},
}

// OpenDatabase connects to a database in which services keep their data. OpenDatabase takes the URLs
// of sqlite, postgres, postgresql and mysql, as [Open] does. OpenDatabase makes no tables. OpenDatabase
// creates the file of SQLite if that is missing, but not its folder. With [engine.Existing] a missing file is
// an error that matches [engine.ErrNoStore].
//
// OpenDatabase takes the parameters of passwords and TLS, connections (4 by default), and
// pooled of PostgreSQL. OpenDatabase refuses the parameters of locks. A connection to MySQL or MariaDB that is older
// than 30 s is closed when it is idle or comes back to the pool. A transaction or a *sql.Conn keeps it. So services leave a server that is no
// longer the primary, and that keeps its connections.
//
// OpenDatabase fails with [ErrURL] when the URL is wrong or of another kind of store, before any
// request. OpenDatabase fails with [engine.ErrUnavailable] as Open does. ctx bounds the opening only. The
// caller closes the database.
func OpenDatabase(ctx context.Context, rawURL string) (*Database, error) {
	d, err := openTwin(ctx, rawURL, databaseKind, databaseTwins)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.within, fmt.Errorf("no answer within %v", d.within))
	defer cancel()
	if err := d.reach(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// PrepareDatabase is [OpenDatabase] for a database that may be away: it sends no request before the
// first use. PrepareDatabase fails with [ErrURL] only.
func PrepareDatabase(rawURL string) (*Database, error) {
	return openTwin(context.Background(), rawURL, databaseKind, databaseTwins)
}

// OpenRedis connects to a Redis in which services keep their data. OpenRedis takes the URLs of redis,
// rediss, redis+cluster and redis+sentinel, as [Open] does. OpenRedis takes the parameters of
// passwords and TLS. OpenRedis refuses the parameters of locks.
//
// The errors are those of [OpenDatabase]. ctx bounds the opening only. The caller closes the
// client.
func OpenRedis(ctx context.Context, rawURL string) (rueidis.Client, error) {
	return openTwin(ctx, rawURL, "Redis", redisTwins)
}

// OpenNATS connects to NATS servers by which services send messages. OpenNATS takes the URLs of nats, as
// [Open] does, and the parameters of passwords and TLS. The connection is made again after each trouble, and
// keeps no request back to send it later.
//
// The errors are those of [OpenDatabase]. ctx bounds the opening only. The caller closes the
// connection.
func OpenNATS(ctx context.Context, rawURL string) (*nats.Conn, error) {
	return openTwin(ctx, rawURL, "NATS", natsTwins)
}

func openTwin[T any](ctx context.Context, rawURL, what string, twins map[string]twin[T]) (none T, err error) {
	name, _, found := strings.Cut(rawURL, ":")
	t, ok := twins[name]
	if _, known := schemes[name]; !ok && known && found {
		return none, wrong("%s is no %s: allowed are %s", name, what, strings.Join(slices.Sorted(maps.Keys(twins)), ", "))
	}
	if !ok || !found {
		return none, unknown(name, found, slices.Sorted(maps.Keys(twins)))
	}
	s, err := schemeOf(rawURL)
	if err != nil {
		return none, err
	}
	s.params = t.params
	return connect(ctx, rawURL, s, t.open)
}

func redisClient(servers redisServers) func(context.Context, *url.URL) (rueidis.Client, error) {
	return func(ctx context.Context, u *url.URL) (rueidis.Client, error) {
		option, mode, err := servers(u)
		if err != nil {
			return nil, err
		}
		return connectRedis(ctx, option, mode)
	}
}

func postgresDatabase(_ context.Context, u *url.URL) (*Database, error) {
	config, err := postgresConfig(u)
	if err != nil {
		return nil, err
	}
	conns, err := connections(u, leaseConns)
	if err != nil {
		return nil, err
	}
	pooled, err := onOff(u, "pooled")
	if err != nil {
		return nil, err
	}
	if pooled { // a pooler gives each transaction another connection, which has no prepared statements
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	return &Database{kept(stdlib.OpenDB(*config.ConnConfig), conns), dialect.PostgreSQL, "postgres at " + u.Host, connectTimeout}, nil
}

func mysqlDatabase(_ context.Context, u *url.URL) (*Database, error) {
	config, err := mysqlConfig(u)
	if err != nil {
		return nil, err
	}
	conns, err := connections(u, leaseConns)
	if err != nil {
		return nil, err
	}
	db, err := mysqlDB(config, conns)
	if err != nil {
		return nil, err
	}
	db.SetConnMaxLifetime(30 * time.Second) // a server that was demoted keeps its connections
	return &Database{db, dialect.MySQL, "mysql at " + u.Host, connectTimeout}, nil
}

// sqliteDatabase leaves the journal of the file as it is, because the file may belong to another
// program.
func sqliteDatabase(ctx context.Context, u *url.URL) (*Database, error) {
	path, err := sqlitePath(u)
	if err != nil {
		return nil, err
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("sqlite %s: %w", path, err)
	}
	if _, err := os.Stat(absolute); errors.Is(err, fs.ErrNotExist) && engine.CreatesNothing(ctx) {
		return nil, fmt.Errorf("sqlite %s: %w", path, engine.ErrNoStore)
	}
	location := url.URL{Path: "/" + strings.TrimPrefix(filepath.ToSlash(absolute), "/")}
	db, err := sql.Open("sqlite3", "file:"+location.EscapedPath()+"?_pragma=busy_timeout(5000)&_pragma=synchronous(full)")
	if err != nil {
		return nil, fmt.Errorf("sqlite %s: %w", path, err)
	}
	return &Database{kept(db, leaseConns), dialect.SQLite, "sqlite " + path, fileTimeout}, nil
}

// kept bounds the connections and keeps them while they are used.
func kept(db *sql.DB, conns int) *sql.DB {
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	db.SetConnMaxIdleTime(time.Minute)
	return db
}

// reach asks the database for an answer. Only a read finds a file that is no database.
func (d *Database) reach(ctx context.Context) error {
	err := d.DB.PingContext(ctx)
	if err == nil && d.Dialect == dialect.SQLite {
		var version int
		err = d.DB.QueryRowContext(ctx, "PRAGMA schema_version").Scan(&version)
	}
	if err != nil {
		return inOneLine(ctx, d.what, engine.Unavailable("connect", err))
	}
	return nil
}
