package open_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/enginetest"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/testservers"
)

// oneRedis speaks to one server, alone or of a cluster.
func oneRedis(t *testing.T, addr string) rueidis.Client {
	t.Helper()
	raw, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(raw.Close)
	return raw
}

// redisKiller ends sessions in the server that a client reaches.
func redisKiller(t *testing.T, option rueidis.ClientOption) func(*testing.T, string) {
	option.DisableCache = true
	raw, err := rueidis.NewClient(option)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(raw.Close)
	return func(t *testing.T, session string) {
		for _, r := range raw.DoMulti(context.Background(), raw.B().Del().Key("pawl:session:"+session).Build(),
			raw.B().Zrem().Key("pawl:sessions").Member(session).Build()) {
			if n, err := r.AsInt64(); err != nil || n != 1 {
				t.Fatal(n, err)
			}
		}
	}
}

func sentinelURL(master string, addrs ...string) string {
	return "redis+sentinel://" + strings.Join(addrs, ",") + "/" + master
}

// patient keeps Sentinels from replacing a master that is only slow. Some Sentinels know that
// master by another address. Such Sentinels would take the new master for a replica.
func patient(t *testing.T, s *testservers.Sentinels) {
	t.Helper()
	for _, addr := range s.Addrs() {
		c := oneRedis(t, addr)
		if err := c.Do(t.Context(), c.B().Arbitrary("SENTINEL", "SET").Keys(testservers.SentinelMaster).Args("down-after-milliseconds", "60000").Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRedisSentinel: a Sentinel tells clients the real address of its master. For trouble on the
// network there is one more Sentinel. That Sentinel knows the master by the address of a proxy, as behind a
// translation of addresses. Clients reach that Sentinel through another proxy, and both proxies
// have the trouble.
func TestRedisSentinel(t *testing.T) {
	s := testservers.RedisSentinels(t)
	patient(t, s)
	enginetest.Run(t, &enginetest.Harness{
		Open: func(t *testing.T) engine.Engine {
			return connect(t, sentinelURL(testservers.SentinelMaster, s.Addrs()...))
		},
		TTL: time.Second,
		Network: func(t *testing.T) (engine.Engine, enginetest.Network) {
			master := proxy.New(t, s.Master.Addr)
			sentinel := proxy.New(t, testservers.RedisObserver(t, master.Addr).Addr)
			net := network(t, master, sentinel)
			return connect(t, sentinelURL(testservers.ObservedMaster, sentinel.Addr)), net
		},
		KillSession: redisKiller(t, rueidis.ClientOption{InitAddress: []string{s.Master.Addr}}),
		Forgetful: func(t *testing.T) (func(*testing.T) engine.Engine, func()) {
			master := testservers.Redis(t)
			sentinel := testservers.RedisObserver(t, master.Addr)
			return func(t *testing.T) engine.Engine {
					return connect(t, sentinelURL(testservers.ObservedMaster, sentinel.Addr))
				},
				func() { master.Kill(); master.Restart() }
		},
		Cannot: otherRedis,
	})
}

// aclRules reads the rules that docs/stores/redis.md tells an operator to allow: the text between a
// beginning and an end.
func aclRules(t *testing.T, after, end string) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/stores/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), after)
	rules, _, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("docs/stores/redis.md has no rules after %q", after)
	}
	return strings.Fields(rules)
}

func appRules(t *testing.T) []string { return aclRules(t, "ACL SETUSER app on >PASSWORD ", "\n") }

// TestRedisACL runs everything as a user with the rights that docs/stores/redis.md lists, and no
// more. Then the test checks that the server refused nothing, and that every right was used.
func TestRedisACL(t *testing.T) {
	rules := appRules(t)
	start := func(t *testing.T) *testservers.Server {
		root := []string{"--user", "default", "on", "nopass", "~*", "&*", "+@all"}
		return testservers.Redis(t, slices.Concat(root, []string{"--user", "app", "on", ">s3cret"}, rules)...)
	}
	url := func(addr string) string { return "redis://app:s3cret@" + addr }
	server := start(t)
	t.Run("table", func(t *testing.T) {
		enginetest.Run(t, &enginetest.Harness{
			Open:        func(t *testing.T) engine.Engine { return connect(t, url(server.Addr)) },
			TTL:         time.Second,
			Network:     proxied(server.Addr, url),
			KillSession: redisKiller(t, rueidis.ClientOption{InitAddress: []string{server.Addr}, ForceSingleClient: true}),
			Forgetful: func(t *testing.T) (func(*testing.T) engine.Engine, func()) {
				server := start(t)
				return func(t *testing.T) engine.Engine { return connect(t, url(server.Addr)) },
					func() { server.Kill(); server.Restart() }
			},
			Cannot: otherRedis,
		})
	})
	manyHold(t, clientOf(t, connect(t, url(server.Addr)), time.Second))
	used := commandsUsed(t, server.Addr)
	for _, rule := range rules {
		if command, allows := strings.CutPrefix(rule, "+"); allows && !used[command] {
			t.Errorf("docs/stores/redis.md allows %q, which nothing needs", command)
		}
	}
}

// manyHold has more holders than one try looks at.
func manyHold(t *testing.T, c *pawl.Client) {
	t.Helper()
	const n = 300
	for range n {
		if _, err := c.Semaphore("many", n).Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if l, err := c.Semaphore("many", n).TryLock(t.Context()); !errors.Is(err, pawl.ErrNotAcquired) {
		t.Error(l, err)
	}
}

// TestRedisSentinelACL: clients of Sentinels need no more rights than the documentation lists,
// neither of the servers nor of the Sentinels.
func TestRedisSentinelACL(t *testing.T) {
	master := testservers.RedisUser(t, "app", "s3cret", append(appRules(t), "+role")...)
	user := append([]string{"--user", "default", "off", "--user", "app", "on", ">s3cret"}, aclRules(t, "ACL SETUSER app on >PASSWORD2 ", "\n")...)
	sentinel := testservers.RedisObserver(t, master.Addr, user...)
	t.Setenv("PAWL_TEST_SENTINEL", "s3cret")
	c, err := pawl.New(t.Context(), connect(t, "redis+sentinel://app:s3cret@"+sentinel.Addr+"/"+testservers.ObservedMaster+
		"?sentinel-user=app&sentinel-password-env=PAWL_TEST_SENTINEL"), &pawl.Options{TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := hold(t, c, "acl").Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

var commandStat = regexp.MustCompile(`cmdstat_(\S+):calls=(\d+),.*rejected_calls=(\d+)`)

// commandsUsed returns the commands that the server executed, also inside scripts. commandsUsed fails the
// test for commands that the server refused.
func commandsUsed(t *testing.T, addr string) map[string]bool {
	t.Helper()
	raw := oneRedis(t, addr)
	stats, err := raw.Do(t.Context(), raw.B().Info().Section("commandstats").Build()).ToString()
	if err != nil {
		t.Fatal(err)
	}
	used := make(map[string]bool)
	for _, stat := range commandStat.FindAllStringSubmatch(stats, -1) {
		used[stat[1]] = stat[2] != "0"
		// The name that a client gives itself needs no permission.
		if stat[3] != "0" && stat[1] != "client|setinfo" {
			t.Errorf("%s was refused %s times", stat[1], stat[3])
		}
	}
	return used
}
