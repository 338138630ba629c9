package open

import (
	"context"
	"database/sql"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/mysqlengine"
)

func openMySQL(ctx context.Context, u *url.URL) (engine.Engine, error) {
	config, err := mysqlConfig(u)
	if err != nil {
		return nil, err
	}
	row, conns, err := mode(u)
	if err != nil {
		return nil, err
	}
	if !row && !u.Query().Has("connections") {
		conns++ // for heartbeats
	}
	db, err := mysqlDB(config, conns)
	if err != nil {
		return nil, err
	}
	var eng engine.Engine
	if prefix := u.Query().Get("prefix"); row {
		eng, err = mysqlengine.NewRow(ctx, db, &mysqlengine.RowOptions{Prefix: prefix})
	} else {
		eng, err = mysqlengine.New(ctx, db, &mysqlengine.Options{Prefix: prefix})
	}
	if err != nil {
		db.Close() //nolint:errcheck // the connection has done nothing
		return nil, inOneLine(ctx, "mysql at "+u.Host, err)
	}
	return withParts(opened{Engine: eng, closeClient: db.Close}), nil
}

func mysqlDB(config *mysql.Config, conns int) (*sql.DB, error) {
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, wrong("%v", err)
	}
	return kept(sql.OpenDB(connector), conns), nil
}

func mysqlConfig(u *url.URL) (*mysql.Config, error) {
	addrs, err := addresses(u, "3306")
	if err != nil {
		return nil, err
	}
	c := mysql.NewConfig()
	c.Net, c.Addr, c.Timeout = "tcp", addrs[0], connectTimeout
	c.Logger = &mysql.NopLogger{} // every important message comes as an error
	c.User = u.User.Username()
	c.Passwd, _ = u.User.Password()
	c.DBName = strings.Trim(u.Path, "/")
	switch {
	case len(addrs) > 1:
		return nil, wrong("it is for one server")
	case c.User == "":
		return nil, wrong("the user is missing")
	case c.DBName == "":
		return nil, wrong("the database is missing")
	}
	c.TLS, err = tlsConfig(u)
	return c, err
}
