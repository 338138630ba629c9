package open

import (
	"context"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestOpen_databases(t *testing.T) {
	postgres, mariadb := testservers.SharedPostgres(t).Addr, testservers.SharedMariaDB(t).Addr
	pooler := testservers.PgBouncer(t, postgres).Addr
	for rawURL, wake := range map[string]engine.Wake{
		"postgres://postgres@" + postgres + "/postgres":                                                      engine.WakeHandoff,
		"postgresql://postgres@" + postgres + "/postgres?schema=other&mode=lease":                            engine.WakeHandoff,
		"postgres://postgres@" + postgres + "/postgres?schema=opened&unlogged=on":                            engine.WakeHandoff,
		"postgres://postgres@" + pooler + "/postgres?schema=opened&unlogged=on&pooled=on":                    engine.WakePoll,
		"postgres://postgres@" + pooler + "/postgres?schema=opened&unlogged=on&pooled=on&listen=" + postgres: engine.WakeHandoff,
		"postgres://postgres@" + postgres + "/postgres?mode=row&schema=opened_row&connections=5":             engine.WakeServer,
		"mysql://root@" + mariadb + "/pawl?mode=row&prefix=opened_":                                          engine.WakeServer,
		"mysql://root@" + mariadb + "/pawl":                                                                  engine.WakePoll,
		"mysql://root@" + mariadb + "/pawl?prefix=other_":                                                    engine.WakePoll,
	} {
		eng, err := Again(func() (engine.Engine, error) { return Open(t.Context(), rawURL) })
		if err != nil {
			t.Errorf("%s: %v", rawURL, err)
			continue
		}
		if is := eng.Caps().Wake; is != wake {
			t.Errorf("%s: wakes by %s", rawURL, is)
		}
		s, err := eng.Open(t.Context(), engine.SessionOptions{TTL: time.Second})
		if err == nil {
			err = s.Close(t.Context())
		}
		if err != nil {
			t.Errorf("%s: %v", rawURL, err)
		}
		if err := eng.Close(); err != nil {
			t.Errorf("%s: close: %v", rawURL, err)
		}
	}
}

func TestOpen_wrong_database_URL(t *testing.T) {
	for rawURL, says := range map[string]string{
		"postgres:":                                           "the host is missing",
		"postgres://u:s3cret@h":                               "the database is missing",
		"postgres://h/d":                                      "the user is missing",
		"postgres://u:s3cret@h,i/d":                           "it is for one server",
		"postgres://u:s3cret@h/d/e":                           "has a / in it",
		"postgres://u:s3cret@h/d?unlogged=s3cret":             "unlogged is on or off",
		"postgres://u:s3cret@h/d?pooled=x":                    "pooled is on or off",
		"postgres://u:s3cret@h/d?pooled=":                     `parameter "pooled" is empty`,
		"postgres://u:s3cret@h/d?pooled=on&listen=":           `parameter "listen" is empty`,
		"postgres://u:s3cret@h/d?mode=x":                      "the parameter mode is",
		"postgres://u:s3cret@h/d?listen=:1":                   "a host is missing",
		"postgres://u:s3cret@h/d?connections=1":               "the parameter connections is a number from 2 to 10000",
		"postgres://u:s3cret@h/d?mode=row&connections=s3cret": "connections is a number",
		"postgres://u:s3cret@h/d?mode=row&pooled=on":          "pooled is not for mode=row",
		"mysql://u:s3cret@h/d?connections=1":                  "the parameter connections is a number from 2 to 10000",
		"mysql://u:s3cret@h/d?mode=row&connections=1":         "connections is a number",
		"postgres://u:s3cret@h/d?prefix=x":                    `unknown parameter "prefix"`,
		"mysql://u:s3cret@h":                                  "the database is missing",
		"mysql://h/d":                                         "the user is missing",
		"mysql://u:s3cret@h,i/d":                              "it is for one server",
		"mysql://u:s3cret@h/d?mode=x":                         "the parameter mode is",
		"mysql://u:s3cret@h/d?schema=x":                       `unknown parameter "schema"`,
		"mysql://u:s3cret@h/d?tls-ca=x":                       "which is off without tls=on",
	} {
		refuses(t, rawURL, ErrURL, says)
	}
}

func TestOpen_gives_up_on_databases(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel takes connections, and nobody answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	for _, scheme := range []string{"postgres", "mysql"} {
		for _, tls := range []string{"", "?tls=on"} {
			t.Run(scheme+tls, func(t *testing.T) {
				t.Parallel()
				gaveUp(t, t.Context(), scheme+"://u:s3cret@"+silent.Addr().String()+"/d"+tls, connectTimeout+time.Second)
				soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				gaveUp(t, soon, scheme+"://u:s3cret@"+silent.Addr().String()+"/d"+tls, time.Second)
				gaveUp(t, t.Context(), scheme+"://u:s3cret@127.0.0.1:1/d"+tls, time.Second)
			})
		}
	}
}

// TestOpen_database_refuses: the error of a wrong password is the store's own, in one line, and
// does not repeat the password.
func TestOpen_database_refuses(t *testing.T) {
	mariadb := testservers.SharedMariaDB(t).Addr
	refuses(t, "mysql://nobody:"+secretText+"@"+mariadb+"/pawl", engine.ErrUnavailable, "Access denied")
	postgres := testservers.SharedPostgres(t).Addr
	refuses(t, "postgres://nobody:"+secretText+"@"+postgres+"/postgres", engine.ErrUnavailable, `role "nobody" does not exist`)
	refuses(t, "postgres://postgres:"+url.PathEscape(right)+"@"+postgres+"/none", engine.ErrUnavailable, `database "none" does not exist`)
}

// TestOpen_pooled_and_listening: grants come by message around the pooler.
func TestOpen_pooled_and_listening(t *testing.T) {
	postgres := testservers.SharedPostgres(t).Addr
	pooler := testservers.PgBouncer(t, postgres).Addr
	eng, err := Again(func() (engine.Engine, error) {
		return Open(t.Context(), "postgres://postgres@"+pooler+"/postgres?schema=around&pooled=on&listen="+postgres)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() })
	s := sessiontest.Open(t, eng, 10*time.Minute)
	first, second := sessiontest.Whole(t, sessiontest.Fair), sessiontest.Whole(t, sessiontest.Fair)
	sessiontest.Hold(t, s, first)
	sessiontest.Wait(t, s, second)
	sessiontest.Leave(t, s, first)
	sessiontest.Await(t, s, second)
}

// TestListenerTLS: the connection around a pooler checks the name of the server that this connection reaches, unless the operator names another.
func TestListenerTLS(t *testing.T) {
	for params, want := range map[string][2]string{
		"":                           {"pooler.example", "server.example"},
		"&tls-server-name=a.example": {"a.example", "a.example"},
	} {
		u, err := url.Parse("postgres://u@pooler.example/d?pooled=on&listen=server.example:5433&tls=on" + params)
		if err != nil {
			t.Fatal(err)
		}
		config, err := postgresConfig(u)
		if err != nil {
			t.Fatal(err)
		}
		opts, err := postgresOptions(u, config)
		if err != nil {
			t.Fatal(err)
		}
		if is := [2]string{config.ConnConfig.TLSConfig.ServerName, opts.Listener.TLSConfig.ServerName}; is != want {
			t.Errorf("%s: the names %q are checked, want %q", u, is, want)
		}
	}
}
