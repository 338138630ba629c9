package open

import (
	"context"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/pgengine"
)

func openPostgres(ctx context.Context, u *url.URL) (engine.Engine, error) {
	config, err := postgresConfig(u)
	if err != nil {
		return nil, err
	}
	row, conns, err := mode(u, "unlogged", "pooled", "listen")
	if err != nil {
		return nil, err
	}
	opts, err := postgresOptions(u, config)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(conns)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, engine.Unavailable("connect to postgres at "+u.Host, err)
	}
	var eng engine.Engine
	if row {
		eng, err = pgengine.NewRow(ctx, pool, &pgengine.RowOptions{Schema: opts.Schema})
	} else {
		eng, err = pgengine.New(ctx, pool, opts)
	}
	if err != nil {
		pool.Close()
		return nil, inOneLine(ctx, "postgres at "+u.Host, err)
	}
	return withParts(opened{Engine: eng, closeClient: func() error { pool.Close(); return nil }}), nil
}

// postgresOptions reads the options of lease mode.
func postgresOptions(u *url.URL, config *pgxpool.Config) (opts *pgengine.Options, err error) {
	opts = &pgengine.Options{Schema: u.Query().Get("schema")}
	if opts.Unlogged, err = onOff(u, "unlogged"); err != nil {
		return nil, err
	}
	if opts.Pooled, err = onOff(u, "pooled"); err != nil {
		return nil, err
	}
	if listen := u.Query().Get("listen"); listen != "" {
		opts.Listener = config.ConnConfig.Copy()
		err = setAddress(&opts.Listener.Config, listen)
		nameServer(u, opts.Listener)
	}
	return opts, err
}

// postgresConfig takes all settings from the URL and none from the environment, which may be meant
// for another database.
func postgresConfig(u *url.URL) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig("sslmode=disable passfile=/dev/null")
	if err != nil {
		return nil, wrong("the environment has settings of PostgreSQL that cannot be read")
	}
	c := config.ConnConfig
	if err := setAddress(&c.Config, u.Host); err != nil {
		return nil, err
	}
	c.User = u.User.Username()
	c.Password, _ = u.User.Password()
	c.Database = strings.Trim(u.Path, "/")
	switch {
	case u.Opaque != "":
		return nil, wrong("the host is missing")
	case c.User == "":
		return nil, wrong("the user is missing")
	case c.Database == "":
		return nil, wrong("the database is missing")
	case strings.Contains(c.Database, "/"):
		return nil, wrong("the database %q has a / in it", c.Database)
	}
	if c.TLSConfig, err = tlsConfig(u); err != nil {
		return nil, err
	}
	nameServer(u, c)
	c.Fallbacks, c.ConnectTimeout = nil, connectTimeout
	c.RuntimeParams = map[string]string{"application_name": "pawl", "client_encoding": "UTF8"}
	return config, nil
}

// nameServer has a connection check the name of the server that it reaches, unless the URL names another.
func nameServer(u *url.URL, c *pgx.ConnConfig) {
	if c.TLSConfig != nil && !u.Query().Has("tls-server-name") {
		c.TLSConfig.ServerName = c.Host
	}
}

func setAddress(c *pgconn.Config, host string) error {
	addrs, err := addresses(&url.URL{Host: host}, "5432")
	if err != nil {
		return err
	}
	if len(addrs) > 1 {
		return wrong("it is for one server")
	}
	name, port, _ := net.SplitHostPort(addrs[0])
	number, err := strconv.ParseUint(port, 10, 16)
	c.Host, c.Port = name, uint16(number)
	return err
}

// onOff reads a parameter that is on or off; off is the default.
func onOff(u *url.URL, name string) (bool, error) {
	is := u.Query().Get(name)
	if is != "" && is != "on" && is != "off" {
		return false, wrong("the parameter %s is on or off", name)
	}
	return is == "on", nil
}

// inOneLine gives the reason why a database could not be opened in one line: some drivers use a
// line for each attempt and address.
func inOneLine(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return engine.Unavailable("connect to "+what, context.Cause(ctx))
	}
	return &oneLine{what, err}
}

type oneLine struct {
	what string
	err  error
}

func (e *oneLine) Error() string {
	return e.what + ": " + strings.Join(strings.Fields(e.err.Error()), " ")
}
func (e *oneLine) Unwrap() error { return e.err }
