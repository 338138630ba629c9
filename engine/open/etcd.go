package open

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/etcdengine"
)

func openEtcd(ctx context.Context, u *url.URL) (engine.Engine, error) {
	addrs, err := addresses(u, "2379")
	if err != nil {
		return nil, err
	}
	if strings.Trim(u.Path, "/") != "" {
		return nil, wrong("it has a path")
	}
	user, password, err := loginOfBoth(u)
	if err != nil {
		return nil, err
	}
	secure, err := tlsConfig(u)
	if err != nil {
		return nil, err
	}
	config := clientv3.Config{
		Endpoints:            addrs,
		Username:             user,
		Password:             password,
		TLS:                  secure,
		DialTimeout:          connectTimeout,
		DialKeepAliveTime:    2 * connectTimeout, // servers refuse a shorter time
		DialKeepAliveTimeout: connectTimeout,
		Logger:               zap.NewNop(), // every important message comes as an error
		// The library's own pauses grow to two minutes. For so long a store that is back would
		// still look away.
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: connectTimeout,
		})},
	}
	prefix := u.Query().Get("prefix")
	client, err := connectEtcd(ctx, config, prefix)
	if err != nil {
		return nil, engine.Unavailable("connect to etcd at "+strings.Join(addrs, ","), err)
	}
	return withParts(opened{Engine: etcdengine.New(client, &etcdengine.Options{Prefix: prefix}), closeClient: client.Close}), nil
}

func connectEtcd(ctx context.Context, config clientv3.Config, prefix string) (*clientv3.Client, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var probing sync.WaitGroup
	defer probing.Wait()
	defer cancel(nil)
	probing.Go(func() { probe(ctx, config.Endpoints, config.TLS, cancel) })
	life, end := context.WithCancel(context.Background()) // the client's own: ctx bounds the connecting only
	config.Context = life
	stop := context.AfterFunc(ctx, end)
	client, err := clientv3.New(config)
	if err != nil {
		end()
		return nil, either(ctx, err)
	}
	// A read of a key that may not exist proves that the cluster has a leader and takes the
	// password. If this user may not read the key, the prefix is wrong. The engine will say so.
	_, err = client.Get(ctx, prefix+"pawl/", clientv3.WithCountOnly())
	if (err == nil || errors.Is(err, rpctypes.ErrPermissionDenied)) && stop() {
		return client, nil
	}
	client.Close()
	return nil, either(ctx, err)
}

// either returns the end of ctx, if ctx has ended, rather than its consequence.
func either(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
