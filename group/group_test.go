package group

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) {
	if order := os.Getenv(beMember); order != "" {
		if err := serve(strings.Split(order, "\n")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(testservers.Main(m))
}

// stores are all stores that carry values and that processes share.
var stores = map[string]func(*testing.T) string{
	"sqlite": func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "pawl.db") },
	"redis":  func(t *testing.T) string { return "redis://" + testservers.SharedRedis(t).Addr },
	"etcd":   func(t *testing.T) string { return "etcd://" + testservers.SharedEtcd(t).Addr },
	"postgres": func(t *testing.T) string {
		return "postgres://postgres@" + testservers.SharedPostgres(t).Addr + "/postgres"
	},
	"mariadb": func(t *testing.T) string {
		return "mysql://root@" + testservers.SharedMariaDB(t).Addr + "/pawl"
	},
	"nats":      func(t *testing.T) string { return "nats://" + testservers.SharedNATS(t).Addr },
	"zookeeper": func(t *testing.T) string { return "zk://" + testservers.SharedZooKeeper(t).Addr + "?tick=200ms" },
}

// ttls are longer where the store has a longest tick.
func ttlOf(kind string) time.Duration {
	if kind == "etcd" {
		return 2 * time.Second
	}
	return time.Second
}

// connect returns a client of the store behind the URL. The end of the test closes the client.
func connect(t *testing.T, url string, ttl time.Duration) *pawl.Client {
	t.Helper()
	client, end, err := patient(t.Context(), url, ttl)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	return client
}

// patient returns a client, although the store may be too busy to answer at once.
func patient(ctx context.Context, url string, ttl time.Duration) (client *pawl.Client, end func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, slow)
	defer cancel()
	for {
		eng, err := open.Open(ctx, url)
		if err == nil {
			if client, err = pawl.New(ctx, eng, &pawl.Options{TTL: ttl}); err == nil {
				return client, func() {
					client.Close(context.Background()) //nolint:errcheck // the store may be away
					eng.Close()                        //nolint:errcheck // as above
				}, nil
			}
			eng.Close() //nolint:errcheck // the error of New counts
		}
		if !errors.Is(err, pawl.ErrUnavailable) || ctx.Err() != nil {
			return nil, nil, err
		}
	}
}

var names atomic.Int64

// unused returns a name that no other test has.
func unused() string { return fmt.Sprintf("test/%d/%d", time.Now().UnixNano(), names.Add(1)) }

// views follows a group until the test ends.
type views struct {
	t  *testing.T
	ch chan View
}

func follow(t *testing.T, g *Group) *views {
	t.Helper()
	v := &views{t, make(chan View, 10_000)}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for view, err := range g.Watch(ctx) {
			if err != nil {
				t.Error(err)
				return
			}
			v.ch <- view
		}
	}()
	t.Cleanup(func() { stop(); <-ended })
	return v
}

// until returns the first view that is good.
func (v *views) until(what string, within time.Duration, good func(View) bool) View {
	v.t.Helper()
	late := time.After(within)
	var last View
	for {
		select {
		case last = <-v.ch:
			if good(last) {
				return last
			}
		case <-late:
			v.t.Fatalf("%s: not within %v; the last view has %d members: %.500s", what, within, len(last.Members), fmt.Sprint(last))
		}
	}
}

func ids(all []Member) (ids string) {
	for _, m := range all {
		ids += m.ID
	}
	return ids
}

func has(want string) func(View) bool { return func(v View) bool { return ids(v.Members) == want } }

// fresh is for a test that waits for a stale view afterwards. On a busy machine the first view of all members may be stale, and
// then no further view comes while the store is away.
func fresh(want string) func(View) bool {
	return func(v View) bool { return ids(v.Members) == want && !v.Stale }
}

// join joins, and leaves at the end of the test.
func join(t *testing.T, g *Group, m Member) *Membership {
	t.Helper()
	is, err := insist(t.Context(), g, m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { is.Leave(context.Background()) }) //nolint:errcheck // the store may be away
	return is
}

// insist joins, although the store may be too busy to answer at once.
func insist(ctx context.Context, g *Group, m Member) (is *Membership, err error) {
	err = g.client.Retry(ctx, slow, func() error {
		is, err = g.Join(ctx, m)
		return err
	})
	return is, err
}

const slow = 2 * time.Minute // for a busy machine, and well below the TTL where it matters

// TestStores: on every store members join, change, replace one another, and leave at once: the TTL is five minutes.
func TestStores(t *testing.T) {
	for kind, store := range stores {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			url, name := store(t), unused()
			mine, theirs := New(connect(t, url, 5*time.Minute), name), New(connect(t, url, 5*time.Minute), name)
			seen := follow(t, theirs)
			seen.until("nobody", slow, has(""))
			a := join(t, mine, Member{ID: "a", Addr: "x:1", Meta: map[string]string{"zone": "n"}})
			view := seen.until("a joins", slow, has("a"))
			if m := view.Members[0]; m.Addr != "x:1" || m.Weight != 1 || m.Meta["zone"] != "n" || view.Stale || m.Token == 0 {
				t.Errorf("%+v", view)
			}
			if err := a.Update(t.Context(), Member{Addr: "x:2", Weight: 7}); err != nil {
				t.Fatal(err)
			}
			seen.until("a changes", slow, func(v View) bool {
				return len(v.Members) == 1 && v.Members[0].Addr == "x:2" && v.Members[0].Weight == 7 && v.Members[0].Meta == nil
			})
			join(t, theirs, Member{ID: "b", Addr: "x:2"})
			seen.until("b has the address of a and is newer", slow, has("b"))
			b := join(t, mine, Member{ID: "b", Addr: "x:3"})
			view = seen.until("the newer b has another address", slow, has("ab"))
			if view.Members[1].Addr != "x:3" || view.Members[1].Token <= view.Members[0].Token {
				t.Errorf("%+v", view)
			}
			if all, err := theirs.Members(t.Context()); err != nil || !slices.EqualFunc(all, view.Members, Member.equal) {
				t.Errorf("%v, %v", all, err)
			}
			if err := a.Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			seen.until("a leaves", slow, has("b"))
			if err := b.Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			seen.until("b leaves", slow, has(""))
			if all, err := mine.Members(t.Context()); err != nil || len(all) != 0 {
				t.Errorf("%v, %v", all, err)
			}
		})
	}
}

// TestReplaced: the older member of an ID learns that it was replaced.
func TestReplaced(t *testing.T) {
	t.Parallel()
	store := memengine.New() // a server would begin with a grace of the TTL
	long := &pawl.Options{TTL: 5 * time.Minute}
	mine, theirs := New(dialWith(t, store, long), "g"), New(dialWith(t, store, long), "g")
	old := join(t, mine, Member{ID: "a", Addr: "x:1"})
	young := join(t, theirs, Member{ID: "a", Addr: "x:2"})
	select {
	case <-old.Ended():
	case <-time.After(slow):
		t.Fatal("the older member does not end")
	}
	if err := old.Err(); !errors.Is(err, ErrReplaced) {
		t.Errorf("%v", err)
	}
	if err := old.Update(t.Context(), Member{}); !errors.Is(err, ErrReplaced) {
		t.Errorf("%v", err)
	}
	if err := old.Leave(t.Context()); err != nil {
		t.Error(err)
	}
	if all, err := mine.Members(t.Context()); err != nil || len(all) != 1 || all[0].Addr != "x:2" || young.Err() != nil {
		t.Errorf("%v, %v, %v", all, err, young.Err())
	}
}

// TestRefusals: wrong members change nothing.
func TestRefusals(t *testing.T) {
	t.Parallel()
	client := connect(t, "memory:", time.Minute)
	g := New(client, "g")
	for text, m := range map[string]Member{
		"Member.ID and Member.Addr are empty": {Weight: 1},
		"Member.Weight is -1":                 {ID: "a", Weight: -1},
		"Member.Weight is 65536":              {ID: "a", Weight: MaxWeight + 1},
		"Member has 4098 bytes":               {ID: "a", Addr: strings.Repeat("x", MaxMember), Meta: map[string]string{"k": ""}},
		"Member has 4100 bytes":               {ID: "a", Addr: strings.Repeat("x", MaxMember-3), Meta: map[string]string{"\xff": "\xff"}}, // as it is stored
	} {
		if _, err := g.Join(t.Context(), m); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := New(client, strings.Repeat("g", MaxName+1)).Members(t.Context()); !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
	is := join(t, g, Member{ID: "a"})
	if err := is.Update(t.Context(), Member{ID: "b"}); !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
	if err := is.Leave(t.Context()); err != nil {
		t.Error(err)
	}
	if err := is.Update(t.Context(), Member{}); !errors.Is(err, pawl.ErrClosed) {
		t.Error(err)
	}
	if err := is.Leave(t.Context()); err != nil || is.Err() != nil {
		t.Error(err, is.Err())
	}
	if all, err := g.Members(t.Context()); err != nil || len(all) != 0 {
		t.Error(all, err)
	}
}

// TestTextIsThatOfJSON: a member reads its own fields back from the store as it has them.
func TestTextIsThatOfJSON(t *testing.T) {
	t.Parallel()
	given := Member{ID: "a\xff\xfe", Addr: "\xed\xa0\x80:1", Weight: 1, Meta: map[string]string{"\xf0\x9f": "\xc3\xff\u00e9\x00"}}
	is, err := given.check()
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(given)
	if err != nil {
		t.Fatal(err)
	}
	var stored Member
	if err := json.Unmarshal(data, &stored); err != nil || !is.equal(stored) {
		t.Errorf("%q is stored as %q: %v", is, stored, err)
	}
}
