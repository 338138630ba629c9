package open

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/redisengine"
)

func openRedis(ctx context.Context, u *url.URL) (engine.Engine, error) {
	addrs, err := addresses(u, "6379")
	if err != nil {
		return nil, err
	}
	option := rueidis.ClientOption{
		InitAddress:  addrs,
		Username:     u.User.Username(),
		ClientName:   "pawl",
		DisableCache: true,
		Dialer:       net.Dialer{Timeout: connectTimeout},
		// How long a silent connection is borne before there is another:
		// within the usual TTL.
		ConnWriteTimeout: connectTimeout,
	}
	option.Password, _ = u.User.Password()
	if u.Scheme == "rediss" {
		option.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if db := strings.Trim(u.Path, "/"); db != "" {
		option.SelectDB, err = strconv.Atoi(db)
		if err != nil || option.SelectDB < 0 {
			return nil, wrong("the database %q is not a number from 0", db)
		}
	}
	client, err := within(ctx, func() (rueidis.Client, error) { return rueidis.NewClient(option) }, rueidis.Client.Close)
	if err != nil {
		return nil, engine.Unavailable("connect to redis at "+strings.Join(addrs, ","), err)
	}
	eng := redisengine.New(client, &redisengine.Options{Prefix: u.Query().Get("prefix")})
	return opened{eng, func() error { client.Close(); return nil }}, nil
}
