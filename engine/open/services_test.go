package open

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestOpenDatabase(t *testing.T) {
	postgres, mariadb := testservers.SharedPostgres(t).Addr, testservers.SharedMariaDB(t).Addr
	pooler := testservers.PgBouncer(t, postgres).Addr
	path := filepath.Join(t.TempDir(), "what? 100%.db")
	for rawURL, is := range map[string]dialect.Dialect{
		"postgres://postgres@" + postgres + "/postgres":               dialect.PostgreSQL,
		"postgresql://postgres@" + postgres + "/postgres":             dialect.PostgreSQL,
		"postgres://postgres@" + pooler + "/postgres?pooled=on":       dialect.PostgreSQL,
		"mysql://root@" + mariadb + "/pawl?connections=2":             dialect.MySQL,
		"sqlite:" + (&url.URL{Path: path}).EscapedPath():              dialect.SQLite,
		"sqlite://" + (&url.URL{Path: path + "-other"}).EscapedPath(): dialect.SQLite,
	} {
		db, err := Again(func() (*Database, error) { return OpenDatabase(t.Context(), rawURL) })
		if err != nil {
			t.Errorf("%s: %v", rawURL, err)
			continue
		}
		if db.Dialect != is {
			t.Errorf("%s: it speaks %v", rawURL, db.Dialect)
		}
		for i := range 3 { // a pooler changes the connection under a prepared statement
			var is int
			if err := dialect.New(db.Dialect).Add("SELECT 1 + ").Value(i).Scan(t.Context(), db.DB, &is); err != nil || is != 1+i {
				t.Errorf("%s: 1 + %d is %d, %v", rawURL, i, is, err)
			}
		}
		if err := db.Close(); err != nil { // TestMain sees a connection that is not closed
			t.Errorf("%s: close: %v", rawURL, err)
		}
	}
	for _, file := range []string{path, path + "-other"} {
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenRedis(t *testing.T) {
	server := testservers.SharedRedis(t).Addr
	sentinel := testservers.RedisObserver(t, server).Addr
	ca := testservers.NewCA(t)
	var cluster []string
	for _, node := range testservers.RedisCluster(t) {
		cluster = append(cluster, node.Addr)
	}
	for _, rawURL := range []string{
		"redis://" + server + "/2",
		"rediss://" + testservers.RedisTLS(t, ca).Addr + "?tls-ca=" + ca.File,
		"redis+sentinel://" + sentinel + "/" + testservers.ObservedMaster,
		"redis+cluster://" + strings.Join(cluster, ","),
	} {
		client, err := Again(func() (rueidis.Client, error) { return OpenRedis(t.Context(), rawURL) })
		if err != nil {
			t.Errorf("%s: %v", rawURL, err)
			continue
		}
		if n, err := client.Do(t.Context(), client.B().Incr().Key("n").Build()).AsInt64(); err != nil || n < 1 {
			t.Errorf("%s: %d, %v", rawURL, n, err)
		}
		client.Close() // TestMain sees a client that is not closed
	}
}

// TestOpen_services_password: a service reads its password from the same places as a store.
func TestOpen_services_password(t *testing.T) {
	t.Setenv("PAWL_TEST_RIGHT", right)
	t.Setenv("PAWL_TEST_WRONG", secretText)
	redis := testservers.RedisUser(t, "app", right, "~*", "&*", "+@all").Addr
	mariadb := testservers.SharedMariaDB(t).Addr
	for _, param := range []string{"?password-env=PAWL_TEST_RIGHT", "?password-file=" + file(t, "right", right+"\n")} {
		client, err := Again(func() (rueidis.Client, error) { return OpenRedis(t.Context(), "redis://app@"+redis+param) })
		if err != nil {
			t.Errorf("%s: %v", param, err)
			continue
		}
		client.Close()
	}
	refusesService(t, "redis", "redis://app@"+redis+"?password-env=PAWL_TEST_WRONG", engine.ErrUnavailable, "WRONGPASS")
	refusesService(t, "database", "mysql://nobody@"+mariadb+"/pawl?password-env=PAWL_TEST_WRONG", engine.ErrUnavailable, "Access denied")
}

func TestOpen_wrong_service_URL(t *testing.T) {
	redis := testservers.SharedRedis(t).Addr
	text := file(t, "text", strings.Repeat("no database\n", 1000))
	for _, test := range []struct {
		service, url string
		class        error
		says         string
	}{
		{"database", "", ErrURL, "it has no scheme"},
		{"database", "oracle://u:s3cret@h", ErrURL, `unknown scheme "oracle": known are mysql, postgres, postgresql, sqlite`},
		{"database", "redis://u:s3cret@h", ErrURL, "redis is no SQL database: allowed are mysql, postgres, postgresql, sqlite"},
		{"database", "memory:", ErrURL, "memory is no SQL database"},
		{"database", "postgres://u:s3cret@h", ErrURL, "the database is missing"},
		{"database", "postgres://u:s3cret@h/d?schema=x", ErrURL, `unknown parameter "schema": allowed is connections, pooled, tls,`},
		{"database", "postgres://u:s3cret@h/d?pooled=yes", ErrURL, "pooled is on or off"},
		{"database", "postgres://u:s3cret@h/d?mode=row", ErrURL, `unknown parameter "mode"`},
		{"database", "mysql://u:s3cret@h/d?prefix=x", ErrURL, `unknown parameter "prefix"`},
		{"database", "mysql://u:s3cret@h/d?connections=1", ErrURL, "connections is a number from 2"},
		{"database", "sqlite:x?mode=ro", ErrURL, `unknown parameter "mode": none is allowed`},
		{"database", "sqlite:", ErrURL, "the path is missing"},
		{"database", "sqlite:" + text, engine.ErrUnavailable, "file is not a database"},
		{"database", "sqlite:" + text + "/x.db", engine.ErrUnavailable, "unable to open"},
		{"database", "postgres://u:s3cret@127.0.0.1:1/d", engine.ErrUnavailable, "postgres at 127.0.0.1:1: "},
		{"database", "mysql://u:s3cret@127.0.0.1:1/d", engine.ErrUnavailable, "mysql at 127.0.0.1:1: "},
		{"redis", "etcd://h", ErrURL, "etcd is no Redis: allowed are redis, redis+cluster, redis+sentinel, rediss"},
		{"redis", "redlock://h,i,j", ErrURL, "redlock is no Redis"},
		{"redis", "redis://u:s3cret@h?prefix=x", ErrURL, `unknown parameter "prefix": allowed is password-env, password-file`},
		{"redis", "redis://h?wait=1", ErrURL, `unknown parameter "wait"`},
		{"redis", "redis://h?grace=1s", ErrURL, `unknown parameter "grace"`},
		{"redis", "redis+cluster://" + redis, ErrURL, "there is a server by itself"},
		{"redis", "redis://u:s3cret@127.0.0.1:1", engine.ErrUnavailable, "connection refused"},
	} {
		refusesService(t, test.service, test.url, test.class, test.says)
	}
}

// TestPrepareDatabase: a database that is away is no error before its first use.
func TestPrepareDatabase(t *testing.T) {
	for _, rawURL := range []string{"postgres://u:s3cret@127.0.0.1:1/d", "mysql://u:s3cret@127.0.0.1:1/d"} {
		db, err := PrepareDatabase(rawURL)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.DB.PingContext(t.Context()); err == nil {
			t.Errorf("%s: there is a database", rawURL)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err := PrepareDatabase("zk://u:s3cret@h")
	isError(t, "zk", err, ErrURL, "zk is no SQL database")
}

// refusesService checks that one line without a secret gives the reason of the failure.
func refusesService(t *testing.T, service, rawURL string, class error, says string) {
	t.Helper()
	var err error
	if service == "redis" {
		_, err = OpenRedis(t.Context(), rawURL)
	} else {
		_, err = OpenDatabase(t.Context(), rawURL)
	}
	isError(t, rawURL, err, class, says)
}
