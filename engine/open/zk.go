package open

import (
	"context"
	"crypto/tls"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/zkengine"
)

func openZooKeeper(ctx context.Context, u *url.URL) (engine.Engine, error) {
	addrs, err := addresses(u, "2181")
	if err != nil {
		return nil, err
	}
	opts := zkengine.Options{Root: strings.Trim(u.Path, "/")}
	if opts.User, opts.Password, err = loginOfBoth(u); err != nil {
		return nil, err
	}
	secure, err := tlsConfig(u)
	if err != nil {
		return nil, err
	}
	if secure != nil {
		opts.Dial = (&tls.Dialer{Config: secure}).DialContext
	}
	if strings.Contains(u.Path, "//") {
		return nil, wrong("the path has a part without a name")
	}
	if tick := u.Query().Get("tick"); tick != "" {
		if opts.Tick, err = time.ParseDuration(tick); err != nil || opts.Tick < time.Millisecond || opts.Tick > time.Minute {
			return nil, wrong("the tick %q is not a duration from 1ms to 1m", tick)
		}
	}
	eng := zkengine.New(addrs, &opts)
	for _, err := range eng.List(ctx, "\x00") { // of no name: the server checks the login when the client asks for a list
		if err != nil {
			go eng.Close() //nolint:errcheck // the engine holds nothing; its client waits a second for an answer to its farewell
			if errors.Is(err, engine.ErrUnsupported) {
				return nil, err
			}
			return nil, engine.Unavailable("connect to zookeeper at "+strings.Join(addrs, ","), either(ctx, err))
		}
	}
	return eng, nil
}
