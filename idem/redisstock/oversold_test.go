package redisstock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idem/redisstock"
	"github.com/pawl-go/pawl/idem/stock"
	"github.com/pawl-go/pawl/internal/killtest"
)

const (
	units      = 1_000_000
	goroutines = 4 // of a process
)

var soldOptions = redisstock.Options{Parts: 8, Hold: 300 * time.Millisecond}

// work is a process whose goroutines reserve and confirm until all is sold.
func work(ctx context.Context) error {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: strings.Split(os.Getenv("PAWL_REDISSTOCK_WORKER"), ","), DisableCache: true})
	if err != nil {
		return err
	}
	defer client.Close()
	s, err := redisstock.New(client, os.Getenv("PAWL_REDISSTOCK_NAME"), &soldOptions)
	if err != nil {
		return err
	}
	most, err := strconv.ParseInt(os.Getenv("PAWL_REDISSTOCK_MOST"), 10, 64)
	if err != nil {
		return err
	}
	failed := make([]error, goroutines)
	var group sync.WaitGroup
	for i := range goroutines {
		group.Go(func() { failed[i] = buy(ctx, s, most) })
	}
	group.Wait()
	return errors.Join(failed...)
}

// buy reserves for ids of its own and ends most reservations. Some are left to expire.
func buy(ctx context.Context, s *redisstock.Stock, most int64) error {
	for n := 1 + rand.Int64N(most); ; n = 1 + rand.Int64N(most) {
		id := strconv.FormatInt(n, 10) + " of " + strconv.FormatInt(rand.Int64(), 36)
		err := s.Reserve(ctx, id, n)
		var out *stock.SoldOutError
		if errors.As(err, &out) && out.Left > 0 {
			id = strconv.FormatInt(out.Left, 10) + " of " + strconv.FormatInt(rand.Int64(), 36)
			err = s.Reserve(ctx, id, out.Left)
		}
		switch {
		case errors.As(err, &out) && out.Left == 0:
			return nil
		case errors.Is(err, stock.ErrSoldOut), errors.Is(err, pawl.ErrUnavailable):
			continue
		case err != nil:
			return err
		}
		switch rand.IntN(40) {
		case 0: // it forgets the reservation
		case 1:
			err = s.Cancel(ctx, id)
		case 2:
			err = s.Rebalance(ctx)
		default:
			err = s.Confirm(ctx, id)
		}
		if err != nil && !errors.Is(err, redisstock.ErrEnded) && !errors.Is(err, pawl.ErrUnavailable) {
			return err
		}
	}
}

// confirmed sums the units of all confirmed ids, as the keys of the cluster have them.
func confirmed(t *testing.T, addrs []string, name string) (n int64) {
	t.Helper()
	for _, addr := range addrs {
		c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for cursor := uint64(0); ; {
			page, err := c.Do(t.Context(), c.B().Scan().Cursor(cursor).Match("pawl:stock:{"+name+"/*:id:*").Count(1000).Build()).AsScanEntry()
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range page.Elements {
				is, err := c.Do(t.Context(), c.B().Get().Key(key).Build()).ToString()
				amount, sold := strings.CutPrefix(is, "C ")
				if k, bad := strconv.ParseInt(amount, 10, 64); sold && bad == nil {
					n += k
				} else if err != nil || sold {
					t.Fatal(is, err)
				}
			}
			if cursor = page.Cursor; cursor == 0 {
				break
			}
		}
	}
	return n
}

// testNeverOversold: 3 processes with 4 goroutines each reserve and confirm a million units in a
// cluster, and are killed at any time. Confirmed units and rest are as many as were put, and the
// rest can be reserved to the last unit.
func testNeverOversold(t *testing.T, all []string) {
	most, kills := "1000", 4
	if os.Getenv("PAWL_TEST_SOAK") != "" {
		most, kills = "20", 500
	}
	s := newStock(t, dial(t, all...), soldOptions)
	put(t, s, "first", units)
	workers := killtest.Start(t, 3, "PAWL_REDISSTOCK_WORKER="+strings.Join(all, ","), "PAWL_REDISSTOCK_NAME="+t.Name(), "PAWL_REDISSTOCK_MOST="+most)
	total := func() redisstock.Totals {
		is, err := s.Total(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	if kills := workers.KillAtWork(kills, func() int { return units - int(total().Free) }); kills == 0 {
		t.Error("no process was killed")
	}
	is := total()
	for deadline := time.Now().Add(time.Minute); is.Reserved > 0 && time.Now().Before(deadline); is = total() {
		time.Sleep(5 * time.Millisecond)
	}
	sold := confirmed(t, all, t.Name())
	if t.Logf("%d units are sold, %d are left", sold, is.Free); sold+is.Free != units {
		t.Errorf("%d units of %d", sold+is.Free, units)
	}
	if is.Free > 0 {
		wants(t, s.Reserve(t.Context(), "the rest", is.Free), nil)
	}
	wants(t, s.Reserve(t.Context(), "one more", 1), stock.ErrSoldOut)
}

// testNaiveIsFoundOverselling: clients that read, decide and then write sell more than there is.
func testNaiveIsFoundOverselling(t *testing.T, all []string) {
	client := dial(t, all...)
	for try := 1; ; try++ { // that two read at the same time is likely, not certain
		key := fmt.Sprint(t.Name(), try)
		if err := client.Do(t.Context(), client.B().Set().Key(key).Value(text(units)).Build()).Error(); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		sold := int64(0)
		var group sync.WaitGroup
		for range 3 * goroutines {
			group.Go(func() {
				for {
					n := 1 + rand.Int64N(20_000)
					is, err := client.Do(t.Context(), client.B().Get().Key(key).Build()).AsInt64()
					if err != nil || is < n {
						return
					}
					if err := client.Do(t.Context(), client.B().Set().Key(key).Value(text(is-n)).Build()).Error(); err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					sold += n
					mu.Unlock()
				}
			})
		}
		group.Wait()
		if t.Logf("%d units were sold that were not there", sold-units); sold > units {
			return
		}
		if try == 10 {
			t.Fatal("the naive way is not found wrong")
		}
	}
}

func text(n int64) string { return strconv.FormatInt(n, 10) }
