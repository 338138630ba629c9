package stock_test

import (
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem/stock"
	"github.com/pawl-go/pawl/internal/sqltest"
)

// TestTake: units are taken from one part or several, and all of them can be taken.
func TestTake(t *testing.T) {
	each(t, databases(t), 4, func(t *testing.T, s *stocks) {
		ctx := t.Context()
		if err := s.take(ctx, "sku", 1); !errors.Is(err, stock.ErrNotFound) {
			t.Error(err)
		}
		s.put(t, "sku", 3)
		if is := s.partsOf(t, "sku"); len(is) != 4 {
			t.Errorf("parts %v after few units", is)
		}
		s.put(t, "sku", 39)
		s.put(t, "Sku", 5)
		if err := s.take(ctx, "sku", 25); err != nil {
			t.Error(err)
		}
		for range 3 {
			if err := s.take(ctx, "sku", 5); err != nil {
				t.Error(err)
			}
		}
		err := s.take(ctx, "sku", 3)
		var out *stock.SoldOutError
		if !errors.Is(err, stock.ErrSoldOut) || !errors.As(err, &out) || *out != (stock.SoldOutError{Name: "sku", Wanted: 3, Left: 2}) {
			t.Error(err)
		}
		err = s.transact(ctx, func(tx dialect.DB) error {
			if err := s.Take(ctx, tx, "sku", 3); !errors.Is(err, stock.ErrSoldOut) {
				t.Error(err)
			}
			return s.Take(ctx, tx, "sku", 2) // the transaction goes on
		})
		if is := s.total(t, "sku"); err != nil || is != 0 {
			t.Error(is, err)
		}
		if is := s.total(t, "Sku"); is != 5 {
			t.Errorf("%d of the other name", is)
		}
		if _, err := s.Total(ctx, s.db, "other"); !errors.Is(err, stock.ErrNotFound) {
			t.Error(err)
		}
	})
}

// TestRollback: what a transaction took is back, also from a sweep.
func TestRollback(t *testing.T) {
	each(t, databases(t), 4, func(t *testing.T, s *stocks) {
		s.put(t, "sku", 40)
		before := s.partsOf(t, "sku")
		for _, n := range []int64{1, 11, 40} {
			stop := errors.New("stop")
			err := s.transact(t.Context(), func(tx dialect.DB) error {
				if err := s.Take(t.Context(), tx, "sku", n); err != nil {
					return err
				}
				if is, err := s.Total(t.Context(), tx, "sku"); err != nil || is != 40-n {
					t.Error(is, err)
				}
				return stop
			})
			if is := s.partsOf(t, "sku"); !errors.Is(err, stop) || !slices.Equal(is, before) {
				t.Errorf("%v, %v", is, err)
			}
		}
	})
}

// TestRebalance spreads units over more parts or fewer.
func TestRebalance(t *testing.T) {
	each(t, databases(t), 4, func(t *testing.T, s *stocks) {
		s.put(t, "sku", 43)
		for parts, want := range map[int][]int64{3: {15, 14, 14}, 8: {6, 6, 6, 5, 5, 5, 5, 5}, 1: {43}} {
			table := s.with(t, parts)
			err := s.transact(t.Context(), func(tx dialect.DB) error { return table.Rebalance(t.Context(), tx, "sku") })
			if is := s.partsOf(t, "sku"); err != nil || !slices.Equal(is, want) {
				t.Error(is, err)
			}
		}
		err := s.transact(t.Context(), func(tx dialect.DB) error { return s.Rebalance(t.Context(), tx, "other") })
		if !errors.Is(err, stock.ErrNotFound) {
			t.Error(err)
		}
	})
}

// TestSoldOutWaits: nobody is told "sold out" while a transaction may give units back, or while
// a Rebalance moves them to new parts.
func TestSoldOutWaits(t *testing.T) {
	each(t, databases(t)[:3], 2, func(t *testing.T, s *stocks) {
		first := s.with(t, 5)
		s.put(t, "sku", 10)
		for name, step := range map[string]struct {
			does    func(tx dialect.DB) error
			commits bool
			want    error
		}{
			"rolled back":    {func(tx dialect.DB) error { return s.Take(t.Context(), tx, "sku", 8) }, false, nil},
			"rebalanced":     {func(tx dialect.DB) error { return first.Rebalance(t.Context(), tx, "sku") }, true, nil},
			"taken by other": {func(tx dialect.DB) error { return s.Take(t.Context(), tx, "sku", 8) }, true, stock.ErrSoldOut},
		} {
			t.Run(name, func(t *testing.T) {
				tx, err := s.Begin(t.Context(), s.db)
				if err == nil {
					err = step.does(tx)
				}
				if err != nil {
					t.Fatal(err)
				}
				told := make(chan error, 1)
				go func() { told <- s.take(t.Context(), "sku", 10) }()
				s.untilBlocked(t)
				if step.commits {
					err = tx.Commit()
				} else {
					err = tx.Rollback()
				}
				if err := errors.Join(err, <-told); !errors.Is(err, step.want) {
					t.Error(err)
				}
				s.Run(t, s.db, "DELETE FROM "+s.quoted())
				s.put(t, "sku", 10)
			})
		}
	})
}

// TestRebalancedTwice: a Rebalance loses no unit of the parts that another Rebalance, or a Put of a program with more parts, makes
// meanwhile.
func TestRebalancedTwice(t *testing.T) {
	each(t, databases(t)[:3], 2, func(t *testing.T, s *stocks) {
		more, most := s.with(t, 5), s.with(t, 8)
		for name, does := range map[string]func(tx dialect.DB) error{
			"rebalanced": func(tx dialect.DB) error { return more.Rebalance(t.Context(), tx, "sku") },
			"put":        func(tx dialect.DB) error { return more.Put(t.Context(), tx, "sku", 10) },
		} {
			for _, second := range []*stock.Table{most, s.Table} {
				t.Run(name, func(t *testing.T) {
					s.Run(t, s.db, "DELETE FROM "+s.quoted())
					s.put(t, "sku", 10)
					tx, err := s.Begin(t.Context(), s.db)
					if err == nil {
						err = does(tx)
					}
					if err != nil {
						t.Fatal(err)
					}
					told := make(chan error, 1)
					go func() {
						told <- s.transact(t.Context(), func(tx dialect.DB) error { return second.Rebalance(t.Context(), tx, "sku") })
					}()
					s.untilBlocked(t)
					if err := errors.Join(tx.Commit(), <-told); err != nil {
						t.Error(err)
					}
					want := int64(10)
					if name == "put" {
						want = 20
					}
					if n := s.total(t, "sku"); n != want {
						t.Errorf("%d units, and %d were put", n, want)
					}
				})
			}
		}
	})
}

// TestOldSnapshot: nobody is told "sold out" because of what the transaction has read before others put units.
func TestOldSnapshot(t *testing.T) {
	all := []sqltest.Database{sqltest.SQLite(t, ""), sqltest.Postgres(t, "").At(sql.LevelSerializable), sqltest.MariaDB(t).At(sql.LevelRepeatableRead)}
	each(t, all, 1, func(t *testing.T, s *stocks) {
		s.put(t, "sku", 1)
		if err := s.take(t.Context(), "sku", 1); err != nil { // from now on this process sweeps at once
			t.Fatal(err)
		}
		err := s.transact(t.Context(), func(tx dialect.DB) error {
			if n, err := s.Total(t.Context(), tx, "sku"); n != 0 || err != nil {
				t.Fatal(n, err)
			}
			other := s.with(t, 1)
			if err := s.transact(t.Context(), func(tx dialect.DB) error { return other.Put(t.Context(), tx, "sku", 5) }); err != nil {
				t.Fatal(err)
			}
			return s.Take(t.Context(), tx, "sku", 1)
		})
		if err != nil && !dialect.Again(err) {
			t.Error(err)
		}
	})
}

// untilBlocked waits until a transaction waits for another one.
func (s *stocks) untilBlocked(t *testing.T) {
	t.Helper()
	query, pause := "SELECT COUNT(*) FROM pg_locks WHERE NOT granted", time.Millisecond
	if s.Dialect == dialect.MySQL { // which looks again when nobody has asked for 100 ms
		pause = 150 * time.Millisecond
		query = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(pause) {
		var n int
		if err := s.db.QueryRow(query).Scan(&n); err != nil || time.Now().After(deadline) {
			t.Fatal("nobody waits", err)
		}
		if n > 0 {
			return
		}
	}
}

// TestMistakes are told, named, and nothing is asked.
func TestMistakes(t *testing.T) {
	good, err := stock.New(dialect.PostgreSQL, nil)
	if err != nil || !strings.Contains(good.Schema(), `"pawl_stock"`) {
		t.Fatal(good.Schema(), err)
	}
	with := func(d dialect.Dialect, o stock.Options) error { _, err := stock.New(d, &o); return err }
	total := func(name string) error { _, err := good.Total(t.Context(), nil, name); return err }
	for part, err := range map[string]error{
		"Dialect is 0":                   with(0, stock.Options{}),
		"Parts is 1025: 1 to 1024":       with(dialect.MySQL, stock.Options{Parts: 1025}),
		"Parts is -1":                    with(dialect.MySQL, stock.Options{Parts: -1}),
		`"a;b"`:                          with(dialect.MySQL, stock.Options{Table: "a;b"}),
		"0 units: 1 to 9007199254740992": good.Take(t.Context(), nil, "sku", 0),
		"-1 units":                       good.Put(t.Context(), nil, "sku", -1),
		"9007199254740993 units":         good.Put(t.Context(), nil, "sku", stock.MaxUnits+1),
		"has 0 bytes":                    good.Take(t.Context(), nil, "", 1),
		"has 201 bytes: 1 to 200":        good.Rebalance(t.Context(), nil, strings.Repeat("x", 201)),
		`"a\xff"`:                        total("a\xff"),
		`"a\x00"`:                        total("a\x00"),
	} {
		if !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v", part, err)
		}
	}
}

// TestAPoolIsRefused: there the locks of a sweep would end before its writes.
func TestAPoolIsRefused(t *testing.T) {
	each(t, databases(t)[:4], 2, func(t *testing.T, s *stocks) {
		s.put(t, "sku", 10)
		for _, err := range []error{s.Put(t.Context(), s.db, "sku", 1), s.Take(t.Context(), s.db, "sku", 1), s.Rebalance(t.Context(), s.db, "sku"), s.Take(t.Context(), nil, "sku", 1)} {
			if !errors.Is(err, pawl.ErrInvalid) {
				t.Error(err)
			}
		}
		if n := s.total(t, "sku"); n != 10 {
			t.Error(n)
		}
	})
}

// TestOfAnotherProgram: a table of another shape and a row that is out of range are refused.
func TestOfAnotherProgram(t *testing.T) {
	each(t, databases(t)[:4], 2, func(t *testing.T, s *stocks) {
		s.put(t, "sku", 10)
		s.Run(t, s.db, "UPDATE "+s.quoted()+" SET n = -5 WHERE part = 1")
		if err := s.take(t.Context(), "sku", 9); !errors.Is(err, pawl.ErrMismatch) || !strings.Contains(err.Error(), "part 1 is -5") {
			t.Error(err)
		}
		s.Run(t, s.db, "DROP TABLE "+s.quoted())
		s.Run(t, s.db, "CREATE TABLE "+s.quoted()+" (name varchar(20) PRIMARY KEY, n bigint)")
		if err := s.Create(t.Context(), s.db); !errors.Is(err, pawl.ErrMismatch) {
			t.Error(err)
		}
	})
}
