package open

import (
	"context"
	"database/sql"
	"net/url"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/mysqlengine"
)

func openMySQL(ctx context.Context, u *url.URL) (engine.Engine, error) {
	config, err := mysqlConfig(u)
	if err != nil {
		return nil, err
	}
	switch mode := u.Query().Get("mode"); mode {
	case "", "lease":
		if err := only(u, "lease", "connections"); err != nil {
			return nil, err
		}
		return openMySQLLease(ctx, u, config)
	case "row":
		return openMySQLRow(ctx, u, config)
	default:
		return nil, wrong("the parameter mode is lease or row")
	}
}

func openMySQLLease(ctx context.Context, u *url.URL, config *mysql.Config) (engine.Engine, error) {
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, wrong("%v", err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(leaseConns)
	db.SetMaxIdleConns(leaseConns)
	db.SetConnMaxIdleTime(time.Minute)
	eng, err := mysqlengine.New(ctx, db, &mysqlengine.Options{Prefix: u.Query().Get("prefix")})
	if err != nil {
		db.Close() //nolint:errcheck // nothing was done with it
		return nil, inOneLine(ctx, "mysql at "+u.Host, err)
	}
	return opened{eng, db.Close}, nil
}

func mysqlConfig(u *url.URL) (*mysql.Config, error) {
	addrs, err := addresses(u, "3306")
	if err != nil {
		return nil, err
	}
	c := mysql.NewConfig()
	c.Net, c.Addr, c.Timeout = "tcp", addrs[0], connectTimeout
	c.Logger = &mysql.NopLogger{} // all that matters comes as an error
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
