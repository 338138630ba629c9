package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/fence/redisfence"
	"github.com/pawl-go/pawl/internal/fencetest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

var tests atomic.Int64

// dial returns a client, and a prefix for names that no other test has.
func dial(t *testing.T, addrs ...string) (rueidis.Client, string) {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: addrs, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client, fmt.Sprintf("test:%d:%d:", time.Now().UnixNano(), tests.Add(1))
}

func guard(t *testing.T, client rueidis.Client, opts *redisfence.Options) *redisfence.Guard {
	t.Helper()
	g, err := redisfence.New(client, opts)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func get(ctx context.Context, client rueidis.Client, key string) (string, error) {
	text, err := client.Do(ctx, client.B().Get().Key(key).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return "", nil
	}
	return text, err
}

func TestContract(t *testing.T) {
	client, prefix := dial(t, testservers.SharedRedis(t).Addr)
	for _, opts := range []*redisfence.Options{nil, {Prefix: prefix + "marks:"}, {Prefix: prefix + "short:", Keep: time.Minute}} {
		if err := fencetest.Contract(t.Context(), guard(t, client, opts), prefix); err != nil {
			t.Errorf("%+v: %v", opts, err)
		}
	}
}

// race lets writers at one key; write is what each does.
func race(t *testing.T, client rueidis.Client, key string, write func(ctx context.Context, token fence.Token) error) {
	t.Helper()
	read := fencetest.Text(func(ctx context.Context) (string, error) { return get(ctx, client, key) })
	if err := fencetest.Race(t.Context(), fencetest.Resource{Write: write, Read: read}, 8, 200); err != nil {
		t.Error(err)
	}
}

func TestSetRace(t *testing.T) {
	client, prefix := dial(t, testservers.SharedRedis(t).Addr)
	g, key := guard(t, client, nil), prefix+"it"
	race(t, client, key, func(ctx context.Context, token fence.Token) error {
		return g.Set(ctx, key, token, token.String())
	})
}

// A script of several writes, with keys and arguments of its own.
func TestRunRace(t *testing.T) {
	client, prefix := dial(t, testservers.SharedRedis(t).Addr)
	g, one, two := guard(t, client, nil), prefix+"one", prefix+"two"
	script := redisfence.NewScript(`
		if redis.call('GET', KEYS[1]) ~= redis.call('GET', KEYS[2]) then
			return redis.error_reply('the keys differ')
		end
		redis.call('SET', KEYS[1], ARGV[1])
		redis.call('SET', KEYS[2], ARGV[1])
		return {#KEYS, #ARGV}`)
	race(t, client, one, func(ctx context.Context, token fence.Token) error {
		reply, err := g.Run(ctx, script, prefix+"both", token, []string{one, two}, []string{token.String()})
		if err != nil {
			return err
		}
		if n, err := reply.AsIntSlice(); err != nil || n[0] != 2 || n[1] != 1 {
			return fmt.Errorf("the script found %v keys and arguments, %w", n, err)
		}
		return nil
	})
}

func TestRunReplies(t *testing.T) {
	client, prefix := dial(t, testservers.SharedRedis(t).Addr)
	g := guard(t, client, nil)
	run := func(lua string, token fence.Token) (rueidis.RedisMessage, error) {
		return g.Run(t.Context(), redisfence.NewScript(lua), prefix+"it", token, nil, []string{"a"})
	}
	if reply, err := run(`return ARGV[1]`, 5); err != nil || reply.String() == "" {
		t.Error(reply.String(), err)
	}
	if reply, err := run(``, 5); err != nil || !reply.IsNil() {
		t.Errorf("nothing returned: %v, %v", reply.String(), err)
	}
	if _, err := run(`return redis.error_reply('MINE not today')`, 6); err == nil || !strings.Contains(err.Error(), "MINE not today") || errors.Is(err, fence.ErrStale) {
		t.Error(err)
	}
	if _, err := run(`return 1`, 5); !errors.Is(err, fence.ErrStale) {
		t.Errorf("the script failed, but 6 was there: %v", err)
	}
	many := make([]string, 10000)
	for i := range many {
		many[i] = strconv.Itoa(i)
	}
	reply, err := g.Run(t.Context(), redisfence.NewScript(`return {tostring(#ARGV), ARGV[1], ARGV[#ARGV]}`), prefix+"it", 6, nil, many)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := reply.AsStrSlice(); err != nil || strings.Join(got, " ") != "10000 0 9999" {
		t.Error(got, err)
	}
}

// Set is a write as every other: a stale one changes neither value nor expiry.
func TestSet(t *testing.T) {
	client, prefix := dial(t, testservers.SharedRedis(t).Addr)
	g, key := guard(t, client, nil), prefix+"it"
	if err := g.Set(t.Context(), key, 5, "new"); err != nil {
		t.Fatal(err)
	}
	if err := client.Do(t.Context(), client.B().Expire().Key(key).Seconds(1000).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	if err := g.Set(t.Context(), key, 4, "late"); !errors.Is(err, fence.ErrStale) {
		t.Error(err)
	}
	if text, err := get(t.Context(), client, key); err != nil || text != "new" {
		t.Error(text, err)
	}
	if ttl, err := client.Do(t.Context(), client.B().Ttl().Key(key).Build()).AsInt64(); err != nil || ttl < 1 {
		t.Error(ttl, err)
	}
}

// marks returns the keys that begin with prefix and how long each lives, in ms.
func marks(t *testing.T, client rueidis.Client, prefix string) map[string]int64 {
	t.Helper()
	keys, err := client.Do(t.Context(), client.B().Keys().Pattern(prefix+"*").Build()).AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]int64)
	for _, key := range keys {
		if all[key], err = client.Do(t.Context(), client.B().Pttl().Key(key).Build()).AsInt64(); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// A mark with a lifetime is kept so long after the last token that passed, an equal token too.
// Then the mark is gone, and any later token passes.
func TestKeep(t *testing.T) {
	client, prefix := dial(t, testservers.SharedRedis(t).Addr)
	check := func(keep time.Duration, token fence.Token) error {
		return guard(t, client, &redisfence.Options{Prefix: prefix, Keep: keep}).Check(t.Context(), "it", token)
	}
	key := prefix + "{it}"
	for _, step := range []struct {
		keep     time.Duration
		token    fence.Token
		from, to int64
	}{
		{time.Hour, 5, 3_500_000, 3_600_000},
		{2 * time.Hour, 5, 7_100_000, 7_200_000},
		{0, 5, -1, -1},
		{2 * time.Hour, 5, 7_100_000, 7_200_000},
		{0, 6, -1, -1},
		{time.Hour, 6, 3_500_000, 3_600_000},
	} {
		if err := check(step.keep, step.token); err != nil {
			t.Fatal(err)
		}
		if all := marks(t, client, prefix); len(all) != 1 || all[key] < step.from || all[key] > step.to {
			t.Errorf("token %d, kept for %v: %v", step.token, step.keep, all)
		}
	}
	if err := check(time.Millisecond, 5); !errors.Is(err, fence.ErrStale) {
		t.Error(err)
	}
	if all := marks(t, client, prefix); all[key] < 3_500_000 {
		t.Errorf("a refused token changed the mark: %v", all)
	}
	if err := check(time.Millisecond, 6); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); len(marks(t, client, prefix)) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it never expires")
		}
	}
	if err := check(time.Millisecond, 1); err != nil {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	for _, opts := range []redisfence.Options{{Prefix: "{"}, {Prefix: "a}"}, {Keep: -time.Second}, {Keep: time.Microsecond}} {
		if _, err := redisfence.New(nil, &opts); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
}

// In a cluster the mark is in the slot of what it protects.
func TestCluster(t *testing.T) {
	client, prefix := dial(t, testservers.RedisCluster(t)[0].Addr)
	g := guard(t, client, nil)
	for _, name := range []string{"plain", "a{tag}b", "{tag}", "tag", "{", "a{b", "x{t}{u}", "{}{x}", "}", "a}b", "{}"} {
		key := prefix + name
		err := g.Set(t.Context(), key, 5, name)
		if strings.Contains("{}{x} } a}b {}", name) && name != "{" {
			if !errors.Is(err, fence.ErrInvalid) {
				t.Errorf("%q: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if err := g.Set(t.Context(), key, 4, "late"); !errors.Is(err, fence.ErrStale) {
			t.Errorf("%q: %v", name, err)
		}
		if text, err := get(t.Context(), client, key); err != nil || text != name {
			t.Errorf("%q: %q, %v", name, text, err)
		}
	}
	g = guard(t, client, &redisfence.Options{Prefix: prefix})
	race(t, client, "it", func(ctx context.Context, token fence.Token) error {
		return g.Set(ctx, "it", token, token.String())
	})
}

// A server that forgot its marks takes the first token, which may be an old one:
// as the documentation says.
func TestForgotten(t *testing.T) {
	server := testservers.Redis(t)
	client, prefix := dial(t, server.Addr)
	g := guard(t, client, nil)
	if err := g.Set(t.Context(), prefix, 5, "new"); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	if err := g.Set(t.Context(), prefix, 6, "newer"); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("from a server that is down: %v", err)
	}
	server.Restart()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if err := g.Set(t.Context(), prefix, 4, "late"); err == nil {
			return
		} else if errors.Is(err, fence.ErrStale) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
