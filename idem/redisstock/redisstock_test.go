package redisstock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idem/redisstock"
	"github.com/pawl-go/pawl/idem/stock"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) {
	if os.Getenv("PAWL_REDISSTOCK_WORKER") != "" {
		if err := work(context.Background()); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(testservers.Main(m))
}

// dial is a client of its own, as a process has.
func dial(t testing.TB, addrs ...string) rueidis.Client {
	t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: addrs, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func newStock(t testing.TB, client rueidis.Client, opts redisstock.Options) *redisstock.Stock {
	t.Helper()
	s, err := redisstock.New(client, t.Name(), &opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t testing.TB, s *redisstock.Stock, id string, n int64) {
	t.Helper()
	if err := s.Put(t.Context(), id, n); err != nil {
		t.Fatal(err)
	}
}

func totals(t testing.TB, s *redisstock.Stock, free, reserved int64) {
	t.Helper()
	if is, err := s.Total(t.Context()); err != nil || is != (redisstock.Totals{Free: free, Reserved: reserved}) {
		t.Errorf("%+v, %v, not %d and %d", is, err, free, reserved)
	}
}

// wants fails the test unless the error is of a class, or nil.
func wants(t testing.TB, err, class error) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Errorf("%v, not %v", err, class)
	}
}

// TestListedRights: the rights that the documentation lists are enough.
func TestListedRights(t *testing.T) {
	server := testservers.RedisUser(t, "app", "secret", "~*", "-@all", "+evalsha", "+eval", "+time", "+del", "+@string", "+@hash", "+@sortedset")
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}, Username: "app", Password: "secret", DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	ctx, s := t.Context(), newStock(t, client, redisstock.Options{Parts: 7})
	put(t, s, "first", 100)
	wants(t, s.Reserve(ctx, "all", 100), nil) // of all parts
	wants(t, s.Cancel(ctx, "all"), nil)
	wants(t, s.Rebalance(ctx), nil)
	wants(t, s.Reserve(ctx, "some", 50), nil)
	wants(t, s.Confirm(ctx, "some"), nil)
	totals(t, s, 50, 0)
}

// TestOneServer and TestCluster run the tests that need a server.
func TestOneServer(t *testing.T) {
	t.Run("reserve", func(t *testing.T) { testReserve(t, []string{testservers.SharedRedis(t).Addr}) })
}

func TestCluster(t *testing.T) {
	var all []string
	for _, s := range testservers.RedisCluster(t) {
		all = append(all, s.Addr)
	}
	for name, test := range map[string]func(t *testing.T, addrs []string){
		"reserve": testReserve, "expiry": testExpiry, "rebalance": testRebalance, "slots": testSlots,
		"nobody is told too early": testNobodyIsToldTooEarly, "never oversold": testNeverOversold,
		"a naive way is found overselling": testNaiveIsFoundOverselling,
	} {
		t.Run(name, func(t *testing.T) { test(t, all) })
	}
}

// testReserve takes ids through their lives.
func testReserve(t *testing.T, addrs []string) {
	ctx, client := t.Context(), dial(t, addrs...)
	s := newStock(t, client, redisstock.Options{Parts: 5})
	wants(t, s.Reserve(ctx, "early", 1), stock.ErrNotFound)
	if _, err := s.Total(ctx); !errors.Is(err, stock.ErrNotFound) {
		t.Error(err)
	}
	put(t, s, "first", 102)
	put(t, s, "first", 102)
	wants(t, s.Put(ctx, "first", 103), redisstock.ErrOtherAmount)
	totals(t, s, 102, 0)
	for range 3 {
		wants(t, s.Reserve(ctx, "a", 70), nil) // more than a part has
	}
	wants(t, s.Reserve(ctx, "a", 71), redisstock.ErrOtherAmount)
	wants(t, s.Reserve(ctx, "b", 2), nil)
	totals(t, s, 30, 72)
	for range 2 {
		err := s.Reserve(ctx, "c", 31)
		var out *stock.SoldOutError
		if !errors.Is(err, stock.ErrSoldOut) || !errors.As(err, &out) || out.Wanted != 31 || out.Left != 30 {
			t.Error(err)
		}
	}
	wants(t, s.Confirm(ctx, "c"), redisstock.ErrUnknown)
	for range 2 {
		wants(t, s.Cancel(ctx, "b"), nil)
	}
	wants(t, s.Reserve(ctx, "b", 2), redisstock.ErrEnded)
	wants(t, s.Confirm(ctx, "b"), redisstock.ErrEnded)
	for range 2 {
		wants(t, s.Confirm(ctx, "a"), nil)
		wants(t, s.Reserve(ctx, "a", 70), nil)
	}
	wants(t, s.Cancel(ctx, "a"), redisstock.ErrConfirmed)
	wants(t, s.Reserve(ctx, "d", 32), nil)
	totals(t, s, 0, 32)
	wants(t, s.Cancel(ctx, "late"), nil)
	wants(t, s.Reserve(ctx, "late", 1), redisstock.ErrEnded)
	put(t, s, "second", 3)
	wants(t, s.Reserve(ctx, "e", 3), nil)
	wants(t, s.Reserve(ctx, "f", 1), stock.ErrSoldOut)
	wants(t, newStock(t, client, redisstock.Options{Parts: 6}).Reserve(ctx, "a", 70), pawl.ErrMismatch)
}

// testExpiry: units of a reservation that nobody ends come back by themselves, and its id takes
// nothing any more.
func testExpiry(t *testing.T, addrs []string) {
	ctx, client := t.Context(), dial(t, addrs...)
	s := newStock(t, client, redisstock.Options{Parts: 4, Hold: 50 * time.Millisecond})
	put(t, s, "first", 10)
	wants(t, s.Reserve(ctx, "a", 10), nil)
	for i := 0; ; i++ {
		err := s.Reserve(ctx, fmt.Sprint("b", i), 10)
		if err == nil {
			break
		}
		wants(t, err, stock.ErrSoldOut)
	}
	wants(t, s.Reserve(ctx, "a", 10), redisstock.ErrEnded)
	wants(t, s.Confirm(ctx, "a"), redisstock.ErrEnded)
	wants(t, s.Cancel(ctx, "a"), nil)
	for is := (redisstock.Totals{}); is.Free != 10; time.Sleep(time.Millisecond) {
		var err error
		if is, err = s.Total(ctx); err != nil || is.Free+is.Reserved != 10 {
			t.Fatal(is, err)
		}
	}
}

// testRebalance: units that came to one part are spread, and not one is lost.
func testRebalance(t *testing.T, addrs []string) {
	ctx, client := t.Context(), dial(t, addrs...)
	s := newStock(t, client, redisstock.Options{Parts: 7})
	put(t, s, "first", 100)
	wants(t, s.Reserve(ctx, "all", 100), nil)
	wants(t, s.Cancel(ctx, "all"), nil) // all units are in one part
	wants(t, s.Rebalance(ctx), nil)
	totals(t, s, 100, 0)
	for part := range 7 {
		n, err := client.Do(ctx, client.B().Hget().Key(fmt.Sprintf("pawl:stock:{%s/%d}:n", t.Name(), part)).Field("n").Build()).AsInt64()
		if err != nil || n != 14 && n != 15 {
			t.Errorf("part %d has %d, %v", part, n, err)
		}
	}
}

// testSlots: the parts lie in slots of their own, on all nodes.
func testSlots(t *testing.T, all []string) {
	client := dial(t, all...)
	put(t, newStock(t, client, redisstock.Options{Parts: 16}), "first", 160)
	slots, nodes := make(map[int64]bool), make(map[int64]bool)
	for part := range 16 {
		key := fmt.Sprintf("pawl:stock:{%s/%d}:n", t.Name(), part)
		is, err := client.Do(t.Context(), client.B().Exists().Key(key).Build()).AsInt64()
		if err != nil || is != 1 {
			t.Errorf("part %d is not there: %v", part, err)
		}
		slot, err := client.Do(t.Context(), client.B().ClusterKeyslot().Key(key).Build()).AsInt64()
		if err != nil {
			t.Fatal(err)
		}
		slots[slot], nodes[slot*3/16384] = true, true
	}
	if len(slots) < 15 || len(nodes) != 3 { // two may meet by chance, and the names are always the same
		t.Errorf("%d slots on %d nodes", len(slots), len(nodes))
	}
}

// testNobodyIsToldTooEarly: 4 clients reserve and cancel 2 units at a time of 8 that move
// between parts. None is told "sold out", because at all times 2 are free or reserved by itself.
func testNobodyIsToldTooEarly(t *testing.T, all []string) {
	put(t, newStock(t, dial(t, all...), redisstock.Options{Parts: 5}), "first", 8)
	var group sync.WaitGroup
	for client := range 4 {
		s := newStock(t, dial(t, all...), redisstock.Options{Parts: 5})
		group.Go(func() {
			for i := range 60 {
				id := fmt.Sprint(client, " ", i)
				if err := s.Reserve(t.Context(), id, 2); err != nil {
					t.Error(err)
					return
				}
				if err := s.Cancel(t.Context(), id); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	totals(t, newStock(t, dial(t, all...), redisstock.Options{Parts: 5}), 8, 0)
}

// TestMistakes are told, named, and nothing is asked.
func TestMistakes(t *testing.T) {
	client := dial(t, testservers.SharedRedis(t).Addr)
	good := newStock(t, client, redisstock.Options{})
	with := func(client rueidis.Client, name string, o redisstock.Options) error {
		_, err := redisstock.New(client, name, &o)
		return err
	}
	for part, err := range map[string]error{
		"the client is nil":                         with(nil, "sku", redisstock.Options{}),
		`name "" has 0 bytes: 1 to 200`:             with(client, "", redisstock.Options{}),
		`name "a{b"`:                                with(client, "a{b", redisstock.Options{}),
		`Options.Prefix "a}"`:                       with(client, "sku", redisstock.Options{Prefix: "a}"}),
		"Options.Parts is 1025: 1 to 1024":          with(client, "sku", redisstock.Options{Parts: 1025}),
		"Options.Hold is 1µs: whole milliseconds":   with(client, "sku", redisstock.Options{Hold: time.Microsecond}),
		"Options.Keep is 999ms: whole milliseconds": with(client, "sku", redisstock.Options{Keep: 999 * time.Millisecond}),
		"the id has 0 bytes":                        good.Reserve(t.Context(), "", 1),
		"the id has 201 bytes: 1 to 200":            good.Cancel(t.Context(), strings.Repeat("x", 201)),
		"0 units: 1 to 1099511627776":               good.Put(t.Context(), "a", 0),
		"1099511627777 units":                       good.Reserve(t.Context(), "a", redisstock.MaxUnits+1),
	} {
		if !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v", part, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := good.Reserve(ended, "a", 1); !errors.Is(err, pawl.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	key := fmt.Sprintf("pawl:stock:{%s/0}:n", t.Name())
	one := newStock(t, client, redisstock.Options{Parts: 1})
	if err := client.Do(t.Context(), client.B().Set().Key(key).Value("x").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	wants(t, one.Reserve(t.Context(), "a", 1), pawl.ErrMismatch)
}
