package open

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/natsengine"
	"github.com/pawl-go/pawl/internal/bounded"
)

func openNATS(ctx context.Context, u *url.URL) (engine.Engine, error) {
	opts := natsengine.Options{Bucket: u.Query().Get("bucket")}
	if replicas := u.Query().Get("replicas"); replicas != "" {
		var err error
		if opts.Replicas, err = strconv.Atoi(replicas); err != nil || opts.Replicas != 1 && opts.Replicas != 3 && opts.Replicas != 5 {
			return nil, wrong("replicas is %q: allowed are 1, 3 and 5", replicas)
		}
	}
	nc, err := natsConn(ctx, u)
	if err != nil {
		return nil, err
	}
	eng, err := natsengine.New(ctx, nc, &opts)
	if err != nil {
		nc.Close()
		if errors.Is(err, engine.ErrUnsupported) || errors.Is(err, engine.ErrNoStore) {
			return nil, err
		}
		return nil, engine.Unavailable("connect to nats at "+u.Host, either(ctx, err))
	}
	return withParts(opened{Engine: eng, closeClient: func() error { nc.Close(); return nil }}), nil
}

// natsConn connects to the servers of a URL.
func natsConn(ctx context.Context, u *url.URL) (*nats.Conn, error) {
	addrs, err := addresses(u, "4222")
	if err != nil {
		return nil, err
	}
	if strings.Trim(u.Path, "/") != "" {
		return nil, wrong("it has a path")
	}
	config, err := natsOptions(u)
	if err != nil {
		return nil, err
	}
	servers := strings.Join(addrs, ",")
	nc, err := bounded.Call(ctx, func() (*nats.Conn, error) { return nats.Connect(servers, config...) }, (*nats.Conn).Close)
	if err != nil {
		return nil, engine.Unavailable("connect to nats at "+servers, err)
	}
	return nc, nil
}

// natsOptions are those of a connection that comes back soon after each trouble. The connection
// keeps no request back to send it later.
func natsOptions(u *url.URL) ([]nats.Option, error) {
	options := []nats.Option{
		nats.Name("pawl"), nats.Timeout(connectTimeout / 2), nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond),
		nats.ReconnectJitter(50*time.Millisecond, 50*time.Millisecond), nats.ReconnectBufSize(-1),
		nats.FlusherTimeout(time.Second), // a write that blocks holds the lock of the client, which every call takes
		nats.PingInterval(2 * time.Second), nats.MaxPingsOutstanding(2), nats.IgnoreAuthErrorAbort(),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // what matters comes as an error; a publisher hears denials by a handler of its own
	}
	password, given := u.User.Password()
	switch user := u.User.Username(); {
	case given:
		options = append(options, nats.UserInfo(user, password))
	case user != "":
		options = append(options, nats.Token(user))
	}
	secure, err := tlsConfig(u)
	if err != nil {
		return nil, err
	}
	if secure != nil {
		options = append(options, nats.Secure(secure))
	}
	return options, nil
}
