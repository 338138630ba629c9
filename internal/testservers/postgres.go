package testservers

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var postgresKind = kind{
	name: "postgres", binary: "PAWL_TEST_POSTGRES_BIN", given: "PAWL_TEST_POSTGRES", ports: 1,
	args: func(dir string, ports []int) []string {
		place := []string{"-D", filepath.Join(dir, "data"), "-p", strconv.Itoa(ports[0]), "-h", "127.0.0.1", "-k", ""}
		return append(place, tuned(postgresSettings)...)
	},
	ready:   postgresReady,
	folders: []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"},
	nobody:  true,
	fill:    fillPostgres,
	stop:    syscall.SIGINT,  // SIGTERM waits for the clients
	discard: syscall.SIGQUIT, // SIGKILL leaves its shared memory behind
}

func fillPostgres(k kind, path, dir string, _ []int) error {
	return k.copyTemplate(dir, func(data string) error {
		return run(k.command(filepath.Join(filepath.Dir(path), "initdb"), append([]string{"-D", data, "-U", "postgres", "-A", "trust",
			"-E", "UTF8", "--locale=C", "--no-instructions"}, tuned(postgresInitSettings)...)...))
	})
}

// Postgres starts a private PostgreSQL for one test, with settings such as "-c",
// "max_connections=10". The server keeps its data over Kill and Restart.
func Postgres(t testing.TB, args ...string) *Server { t.Helper(); return start(t, postgresKind, args) }

// PostgresOfSmallFiles starts a private PostgreSQL that can have no file of more than 2 MB, as on a
// full disk.
func PostgresOfSmallFiles(t testing.TB) *Server {
	t.Helper()
	k := postgresKind
	k.largest = 2 << 20 / 512
	return start(t, k, nil)
}

// PostgresPrimary starts a private PostgreSQL as [Postgres] does, which can have replicas.
func PostgresPrimary(t testing.TB, args ...string) *Server {
	t.Helper()
	return Postgres(t, append([]string{"-c", "wal_level=replica", "-c", "max_wal_senders=4"}, args...)...)
}

// PostgresReplica starts a streaming replica of a primary. The replica answers queries, and
// pg_promote() promotes it.
func PostgresReplica(t testing.TB, primary *Server) *Server {
	t.Helper()
	k := postgresKind
	copier, err := kind{name: "pg_basebackup", binary: k.binary, folders: k.folders}.lookPath()
	if err != nil {
		t.Fatal(err)
	}
	k.fill = func(k kind, _, dir string, _ []int) error {
		return run(k.command(copier, "-d", PostgresURL(primary.Addr),
			"-D", filepath.Join(dir, "data"), "--checkpoint=fast", "--no-sync", "--write-recovery-conf"))
	}
	s := start(t, k, []string{"-c", "wal_level=replica", "-c", "max_wal_senders=4"})
	until(t, "it streams", func() error {
		return postgresSays(primary.Addr, "SELECT count(*) > 0 FROM pg_stat_replication WHERE state = 'streaming'")
	})
	return s
}

// postgresSays asks a question of yes or no.
func postgresSays(addr, query string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, PostgresURL(addr))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var is bool
	if err := conn.QueryRow(ctx, query).Scan(&is); err != nil {
		return err
	}
	if !is {
		return errors.New("not yet")
	}
	return nil
}

// SharedPostgres returns the PostgreSQL of this test process, or the PostgreSQL that
// PAWL_TEST_POSTGRES names. That server lets the user postgres in without a password. Tests use
// names of their own in it.
func SharedPostgres(t testing.TB) *Server { t.Helper(); return shared(t, postgresKind) }

// PostgresURL is how to connect, as the superuser postgres, to the database
// postgres of the server, proxy or pooler at addr.
func PostgresURL(addr string) string {
	return "postgres://postgres@" + addr + "/postgres?sslmode=disable"
}

// PostgresEncodedURLs are how to connect to new databases of the shared server, which have other encodings than UTF-8. The server converts texts
// for a client that says that its texts are UTF-8, as every client of lib/pq does. A client of pgx says nothing, so the server takes the bytes for
// texts of its own encoding. EUC_JP lacks some of these bytes, and LATIN1 has all.
func PostgresEncodedURLs(t testing.TB) map[string]string {
	t.Helper()
	addr := SharedPostgres(t).Addr
	pool := PostgresPool(t, addr)
	urls := make(map[string]string)
	for encoding, client := range map[string]string{"LATIN1": "client_encoding=UTF8&", "EUC_JP": ""} {
		name := fmt.Sprintf("encoded_%d", time.Now().UnixNano())
		if _, err := pool.ExecContext(t.Context(), "CREATE DATABASE "+name+" ENCODING '"+encoding+"' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := pool.ExecContext(context.Background(), "DROP DATABASE "+name); err != nil {
				t.Error(err)
			}
		})
		urls[encoding] = strings.Replace(PostgresURL(addr), "/postgres?", "/"+name+"?"+client, 1)
	}
	return urls
}

// postgresReady asks a query, in the form that every pooler takes.
func postgresReady(addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, PostgresURL(addr))
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code[:2] == "28" {
		return nil // a server that asks for a password serves, too
	}
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "SELECT 1", pgx.QueryExecModeSimpleProtocol)
	return errors.Join(err, conn.Close(ctx))
}
