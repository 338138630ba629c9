package open_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/testservers"
)

// fullRedisCluster is the hook of a cluster whose nodes all have used up their memory.
func fullRedisCluster(t *testing.T) (func(*testing.T) engine.Engine, func()) {
	nodes := testservers.RedisCluster(t)
	return func(t *testing.T) engine.Engine { return connect(t, clusterURL(nodes)) }, func() { fillRedis(t, nodes...) }
}

// fillRedis bounds the memory of servers below what each server uses.
func fillRedis(t *testing.T, servers ...*testservers.Server) {
	t.Helper()
	for _, server := range servers {
		raw, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}, ForceSingleClient: true, DisableCache: true})
		if err != nil {
			t.Fatal(err)
		}
		err = raw.Do(t.Context(), raw.B().ConfigSet().ParameterValue().ParameterValue("maxmemory", "1mb").Build()).Error()
		raw.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// fullNATS is the hook of a bucket that has used up its bytes.
func fullNATS(t *testing.T) (func(*testing.T) engine.Engine, func()) {
	addr := testservers.NATS(t).Addr
	js := testservers.JetStream(t, addr)
	return func(t *testing.T) engine.Engine { return connect(t, natsURL(addr)) }, func() {
		stream, err := js.Stream(t.Context(), "KV_pawl")
		if err != nil {
			t.Fatal(err)
		}
		config := stream.CachedInfo().Config
		config.MaxBytes = int64(stream.CachedInfo().State.Bytes) + 1
		if _, err := js.UpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
}

// fullRedis is the hook of a Redis that has used up its maxmemory.
func fullRedis(t *testing.T) (func(*testing.T) engine.Engine, func()) {
	server := testservers.Redis(t)
	return func(t *testing.T) engine.Engine { return connect(t, redisURL(server.Addr)) }, func() { fillRedis(t, server) }
}

// fullEtcd is the hook of an etcd that has used up its quota.
func fullEtcd(t *testing.T) (func(*testing.T) engine.Engine, func()) {
	addr := testservers.Etcd(t, "--quota-backend-bytes", "16777216").Addr
	raw, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	return func(t *testing.T) engine.Engine { return connect(t, etcdURL(addr)) }, func() {
		for i := 0; ; i++ {
			_, err := raw.Put(t.Context(), fmt.Sprint("fill", i), strings.Repeat("x", 1<<20))
			if errors.Is(err, rpctypes.ErrNoSpace) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// fullPostgres is the hook of a PostgreSQL whose tables cannot grow: the kernel refuses that.
func fullPostgres(t *testing.T) (func(*testing.T) engine.Engine, func()) {
	addr := testservers.PostgresOfSmallFiles(t).Addr
	raw, err := pgxpool.New(t.Context(), testservers.PostgresURL(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(raw.Close)
	return func(t *testing.T) engine.Engine { return connect(t, postgresURL("")(addr)) }, func() {
		for _, insert := range []string{
			`INSERT INTO pawl.sessions (id, ends, ttl, label, client) SELECT gen_random_uuid(), 1::bigint << 62, 1, repeat('x', 50), '' FROM generate_series(1, $1)`,
			`INSERT INTO pawl.claims (resource, place, session, id, owner, label, weight, token, since, granted, kind, capacity, barging, waits, news, slot)
				SELECT 'filler' || gen_random_uuid(), 1, 'filler', 'x', 'x', repeat('x', 50), 1, 1, 0, 0, 'lock', 1, 0, 0, 0, 1 FROM generate_series(1, $1)`,
		} {
			for _, rows := range []int{1000, 1} {
				var err error
				for err == nil {
					_, err = raw.Exec(t.Context(), insert, rows)
				}
				if !strings.Contains(err.Error(), "could not extend file") {
					t.Fatal(err)
				}
			}
		}
	}
}
