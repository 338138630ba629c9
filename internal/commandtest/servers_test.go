package commandtest

import (
	"strings"
	"testing"

	"github.com/pawl-go/pawl/internal/testservers"
)

// group is servers that start together, at these usual ports.
type group struct {
	ports []string
	start func(*testing.T, *testservers.CA) []*testservers.Server
}

func one(start func(*testing.T) *testservers.Server) func(*testing.T, *testservers.CA) []*testservers.Server {
	return func(t *testing.T, _ *testservers.CA) []*testservers.Server {
		return []*testservers.Server{start(t)}
	}
}

// groups has the servers for the ports that the documents use. A Redis and a NATS belong to one block,
// because store init is for a new one.
var groups = []group{
	{[]string{"6379"}, one(newRedis)},
	{[]string{"6380"}, one(newRedis)},
	{[]string{"6381"}, one(newRedis)},
	{[]string{"6390"}, func(t *testing.T, ca *testservers.CA) []*testservers.Server {
		return []*testservers.Server{testservers.RedisTLS(t, ca, user()...)}
	}},
	{[]string{"26379", "26380", "26381"}, func(t *testing.T, _ *testservers.CA) []*testservers.Server {
		return testservers.RedisSentinels(t).Watchers
	}},
	{[]string{"7000", "7001", "7002"}, func(t *testing.T, _ *testservers.CA) []*testservers.Server {
		return testservers.RedisCluster(t)
	}},
	{[]string{"2379"}, one(func(t *testing.T) *testservers.Server { return testservers.SharedEtcd(t) })},
	{[]string{"2390"}, func(t *testing.T, ca *testservers.CA) []*testservers.Server {
		return []*testservers.Server{testservers.EtcdTLS(t, ca)}
	}},
	{[]string{"4222"}, one(func(t *testing.T) *testservers.Server { return testservers.NATS(t) })},
	{[]string{"2181"}, one(func(t *testing.T) *testservers.Server { return testservers.SharedZooKeeper(t) })},
	{[]string{"5432"}, one(func(t *testing.T) *testservers.Server { return testservers.SharedPostgres(t) })},
	{[]string{"3306"}, one(func(t *testing.T) *testservers.Server { return testservers.SharedMariaDB(t) })},
}

func newRedis(t *testing.T) *testservers.Server { return testservers.Redis(t, user()...) }

// user lets app in with the password, and others without.
func user() []string { return []string{"--user", "app", "on", ">" + password, "~*", "&*", "+@all"} }

// private starts the servers that a block of commands names, and returns their addresses by
// the usual ports.
func private(t *testing.T, ca *testservers.CA, script string) map[string]string {
	t.Helper()
	addr := make(map[string]string)
	for _, g := range groups {
		if !strings.Contains(script, localhost+g.ports[0]) {
			continue
		}
		for i, s := range g.start(t, ca) {
			addr[g.ports[i]] = s.Addr
		}
	}
	return addr
}
