package stock_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem/stock"
	"github.com/pawl-go/pawl/internal/killtest"
	"github.com/pawl-go/pawl/internal/sqltest"
)

const (
	units      = 500_000 // of each of the two names
	goroutines = 4       // of a process
)

var names = []string{"apples", "pears"} // in the order in which a transaction takes them

// buyer is a goroutine that orders until all is sold out.
type buyer struct {
	*stocks
	most  int64 // units of an order
	naive bool
	again int // how often the database asked for a repetition
	last  int64
	left  map[string]int64 // as a sold out name has said
}

// work is a process with some buyers.
func work(ctx context.Context) error {
	most, err := strconv.ParseInt(os.Getenv("PAWL_STOCK_MOST"), 10, 64)
	if err != nil {
		return err
	}
	var d sqltest.Database
	if err := json.Unmarshal([]byte(os.Getenv("PAWL_STOCK_WORKER")), &d); err != nil {
		return err
	}
	db, err := d.Open()
	if err != nil {
		return err
	}
	defer db.Close()
	s := &stocks{Database: d, db: db, name: os.Getenv("PAWL_STOCK_TABLE")}
	if s.Table, err = stock.New(d.Dialect, &stock.Options{Table: s.name, Parts: 8}); err != nil {
		return err
	}
	_, err = s.buyAll(ctx, most, false)
	return err
}

// buyAll has goroutines order until all is sold out.
func (s *stocks) buyAll(ctx context.Context, most int64, naive bool) (again int, err error) {
	buyers := make([]*buyer, goroutines)
	failed := make([]error, goroutines)
	var group sync.WaitGroup
	for i := range buyers {
		buyers[i] = &buyer{stocks: s, most: most, naive: naive, left: make(map[string]int64)}
		group.Go(func() { failed[i] = buyers[i].buy(ctx) })
	}
	group.Wait()
	for _, b := range buyers {
		again += b.again
	}
	return again, errors.Join(failed...)
}

func (b *buyer) buy(ctx context.Context) error {
	for {
		want := make(map[string]int64)
		for _, name := range names {
			left, known := b.left[name]
			if rand.IntN(3) > 0 && (!known || left > 0) {
				want[name] = 1 + rand.Int64N(b.most)
				if known {
					want[name] = left
				}
			}
		}
		err := b.transact(ctx, func(tx dialect.DB) error { return b.order(ctx, tx, want) })
		var out *stock.SoldOutError
		switch {
		case errors.As(err, &out):
			b.left[out.Name] = out.Left
		case dialect.Again(err):
			b.again++
		case err != nil:
			return err
		}
		if apples, known := b.left[names[0]]; known && apples == 0 {
			if pears, known := b.left[names[1]]; known && pears == 0 {
				return nil
			}
		}
	}
}

// order takes units and writes them down in the same transaction. Each tenth order is cancelled
// by the next.
func (b *buyer) order(ctx context.Context, tx dialect.DB, want map[string]int64) error {
	id := rand.Int64()
	for _, name := range names {
		n := want[name]
		if n == 0 {
			continue
		}
		take := b.Take
		if b.naive {
			take = b.naiveTake
		}
		if err := take(ctx, tx, name, n); err != nil {
			return err
		}
		if err := b.Exec(ctx, tx, "INSERT INTO orders_"+b.name+" VALUES (?, ?, ?)", id, name, n); err != nil {
			return err
		}
	}
	if cancels := b.last != 0 && rand.IntN(10) == 0 && !b.naive && len(want) == 0; cancels {
		return b.cancel(ctx, tx)
	}
	b.last = id
	return nil
}

// cancel gives the units of the last order back.
func (b *buyer) cancel(ctx context.Context, tx dialect.DB) error {
	for _, name := range names {
		var n int64
		err := dialect.New(b.Dialect).Add("SELECT n FROM orders_"+b.name+" WHERE id = ").Value(b.last).Add(" AND name = ").Value(name).Scan(ctx, tx, &n)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return err
		}
		if err := b.Exec(ctx, tx, "DELETE FROM orders_"+b.name+" WHERE id = ? AND name = ?", b.last, name); err != nil {
			return err
		}
		if err := b.Put(ctx, tx, name, n); err != nil {
			return err
		}
	}
	return nil
}

// naiveTake reads how many there are, decides, and writes how many are left.
func (b *buyer) naiveTake(ctx context.Context, tx dialect.DB, name string, n int64) error {
	var is int64
	if err := b.db.QueryRowContext(ctx, "SELECT n FROM "+b.quoted()+" WHERE name = '"+name+"' AND part = 0").Scan(&is); err != nil {
		return err
	}
	if is < n {
		return &stock.SoldOutError{Name: name, Wanted: n, Left: is}
	}
	return b.Exec(ctx, tx, "UPDATE "+b.quoted()+" SET n = ? WHERE name = ? AND part = 0", is-n, name)
}

// sold returns how many units the orders have.
func (s *stocks) sold(t *testing.T, name string) int64 {
	t.Helper()
	return s.Number(t, s.db, "SELECT CAST(COALESCE(SUM(n), 0) AS DECIMAL) FROM orders_"+s.name+" WHERE name = ?", name)
}

func (s *stocks) newOrders(t *testing.T) {
	t.Helper()
	s.Run(t, s.db, "CREATE TABLE orders_"+s.name+" (id bigint NOT NULL, name varchar(20) NOT NULL, n bigint NOT NULL, PRIMARY KEY (id, name))")
	t.Cleanup(func() { s.Run(t, s.db, "DROP TABLE orders_"+s.name) })
}

// TestNeverOversold: 3 processes with 4 buyers each order a million units, some of which are
// given back, and the processes are killed at any time. Orders and rest are as many as
// were put, and the rest can be taken to the last unit.
func TestNeverOversold(t *testing.T) {
	most, kills := "2000", 3
	if os.Getenv("PAWL_TEST_SOAK") != "" {
		most, kills = "20", 500
	}
	all := databases(t)
	each(t, all[:5], 8, func(t *testing.T, s *stocks) {
		s.newOrders(t)
		for _, name := range names {
			s.put(t, name, units)
		}
		workers := killtest.Start(t, 3, "PAWL_STOCK_WORKER="+s.JSON(), "PAWL_STOCK_MOST="+most, "PAWL_STOCK_TABLE="+s.name)
		if kills := workers.KillAtWork(kills, func() int { return int(s.Number(t, s.db, "SELECT COUNT(*) FROM orders_"+s.name)) }); kills == 0 {
			t.Error("no process was killed")
		}
		for _, name := range names {
			sold, rest := s.sold(t, name), s.total(t, name)
			if t.Logf("%d %s are sold, %d are left", sold, name, rest); sold+rest != units {
				t.Errorf("%d %s of %d", sold+rest, name, units)
			}
			if rest > 0 {
				if err := s.take(t.Context(), name, rest); err != nil {
					t.Errorf("the last %d %s: %v", rest, name, err)
				}
			}
			if err := s.take(t.Context(), name, 1); !errors.Is(err, stock.ErrSoldOut) {
				t.Errorf("one more of %s: %v", name, err)
			}
		}
	})
}

// TestNaiveIsFoundOverselling: the same buyers sell more than there is when they read and
// then write.
func TestNaiveIsFoundOverselling(t *testing.T) {
	each(t, databases(t)[:4], 1, func(t *testing.T, s *stocks) {
		s.newOrders(t)
		for try := 1; ; try++ { // that two read at the same time is likely, not certain
			for _, name := range names {
				s.put(t, name, units)
			}
			if _, err := s.buyAll(t.Context(), 5_000, true); err != nil {
				t.Fatal(err)
			}
			over := max(s.sold(t, names[0]), s.sold(t, names[1])) - int64(units*try)
			if t.Logf("%d units were sold that were not there", over); over > 0 {
				break
			}
			if try == 10 {
				t.Fatal("the naive way is not found wrong")
			}
		}
	})
}

// TestNoCircleWhilePlenty: transactions that take two names in their order do not end in
// deadlocks while the parts have enough, at the level for hot rows.
func TestNoCircleWhilePlenty(t *testing.T) {
	each(t, databases(t)[:3], 3, func(t *testing.T, s *stocks) {
		s.newOrders(t)
		for _, name := range names {
			s.put(t, name, 100*units)
		}
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				b := &buyer{stocks: s, left: make(map[string]int64)}
				for range 40 {
					err := s.transact(t.Context(), func(tx dialect.DB) error {
						return b.order(t.Context(), tx, map[string]int64{names[0]: 1 + rand.Int64N(100), names[1]: 1 + rand.Int64N(100)})
					})
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
	})
}
