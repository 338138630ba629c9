package pgxidem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/pgxidem"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// fixture is a table of keys and a table of effects, which one test has for itself.
type fixture struct {
	*testing.T
	pool           *pgxpool.Pool
	level          pgx.TxIsoLevel
	store          *pgxidem.Store
	table, effects string
}

var tables atomic.Int64

// each runs a test at every level of isolation, and in the way of a pooler that knows no prepared statements.
func each(t *testing.T, test func(f *fixture)) {
	t.Helper()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		for _, mode := range []string{"cache_statement", "simple_protocol"} {
			t.Run(fmt.Sprintf("%s, %s", level, mode), func(t *testing.T) {
				pool, err := pgxpool.New(t.Context(), testservers.PostgresURL(testservers.SharedPostgres(t).Addr)+"&pool_max_conns=16&default_query_exec_mode="+mode)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(pool.Close)
				n := fmt.Sprintf("%d_%d", time.Now().UnixNano(), tables.Add(1))
				f := &fixture{T: t, pool: pool, level: level, table: "keys_" + n, effects: "effects_" + n}
				if f.store, err = pgxidem.New(&pgxidem.Options{Table: f.table}); err != nil {
					t.Fatal(err)
				}
				if err := f.store.Check(t.Context(), pool); !errors.Is(err, dialect.ErrMissing) {
					t.Error(err)
				}
				if err := f.store.Migrate(t.Context(), pool); err != nil {
					t.Fatal(err)
				}
				f.exec("CREATE TABLE " + f.effects + " (name text)")
				t.Cleanup(func() { f.exec("DROP TABLE " + f.table); f.exec("DROP TABLE " + f.effects) })
				test(f)
			})
		}
	}
}

func (f *fixture) exec(query string) {
	f.Helper()
	if _, err := f.pool.Exec(context.Background(), query); err != nil {
		f.Fatalf("%s: %v", query, err)
	}
}

func (f *fixture) begin() pgx.Tx {
	f.Helper()
	tx, err := f.pool.BeginTx(f.Context(), pgx.TxOptions{IsoLevel: f.level})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { tx.Rollback(context.Background()) }) //nolint:errcheck // it may have ended
	return tx
}

func (f *fixture) commit(tx pgx.Tx) {
	f.Helper()
	if err := tx.Commit(f.Context()); err != nil {
		f.Fatal(err)
	}
}

// pay is a call whose function writes an effect and then returns fails.
func (f *fixture) pay(tx pgx.Tx, id string, n int, opts idem.TxOptions, fails error) (int, bool, error) {
	f.Helper()
	return idem.Do(f.Context(), f.store.In(tx).With(opts), idem.Key{Scope: "pay", ID: id}, idem.FingerprintOf([]byte(id)), func(ctx context.Context) (int, error) {
		if _, err := tx.Exec(ctx, "INSERT INTO "+f.effects+" VALUES ($1)", id); err != nil {
			return 0, err
		}
		return n, fails
	})
}

func (f *fixture) count(id string) (n int) {
	f.Helper()
	if err := f.pool.QueryRow(f.Context(), "SELECT count(*) FROM "+f.effects+" WHERE name = $1", id).Scan(&n); err != nil {
		f.Fatal(err)
	}
	return n
}

func TestARepeatGetsTheKeptResult(t *testing.T) {
	each(t, func(f *fixture) {
		for i := range 3 {
			tx := f.begin()
			if n, replayed, err := f.pay(tx, "a", i, idem.TxOptions{}, nil); n != 0 || replayed != (i > 0) || err != nil {
				f.Error(n, replayed, err)
			}
			_, _, err := idem.Do(f.Context(), f.store.In(tx), idem.Key{Scope: "pay", ID: "a"}, idem.FingerprintOf([]byte("other")), func(context.Context) (int, error) { return 1, nil })
			if !errors.Is(err, idem.ErrReused) {
				f.Error(err)
			}
			replayed, err := idem.Run(f.Context(), f.store.In(tx), idem.Key{Scope: "pay", ID: "run"}, idem.Fingerprint{}, func(context.Context) error { return nil })
			if replayed != (i > 0) || err != nil {
				f.Error(replayed, err)
			}
			f.commit(tx)
		}
		if n := f.count("a"); n != 1 {
			f.Error(n)
		}
	})
}

// The writes of fn are undone with its claim, and the rest of the transaction stays.
func TestAnErrorRemovesTheClaimEvenIfTheCallerCommits(t *testing.T) {
	each(t, func(f *fixture) {
		declined := errors.New("no money")
		tx := f.begin()
		if _, err := tx.Exec(f.Context(), "INSERT INTO "+f.effects+" VALUES ('before')"); err != nil {
			f.Fatal(err)
		}
		if _, _, err := f.pay(tx, "a", 1, idem.TxOptions{}, declined); err != declined {
			f.Error(err)
		}
		_, err := idem.Run(f.Context(), f.store.In(tx), idem.Key{Scope: "pay", ID: "b"}, idem.Fingerprint{}, func(ctx context.Context) error {
			_, err := tx.Exec(ctx, "nonsense")
			return err
		})
		if err == nil || strings.Contains(err.Error(), "remove") {
			f.Error(err)
		}
		func() {
			defer func() {
				if recover() != declined {
					f.Error("no panic")
				}
			}()
			idem.Run(f.Context(), f.store.In(tx), idem.Key{Scope: "pay", ID: "c"}, idem.Fingerprint{}, func(context.Context) error { panic(declined) }) //nolint:errcheck // it panics
		}()
		f.commit(tx)
		if a, before := f.count("a"), f.count("before"); a != 0 || before != 1 {
			f.Error(a, before)
		}
		tx = f.begin()
		for _, id := range []string{"a", "b", "c"} {
			if n, replayed, err := f.pay(tx, id, 2, idem.TxOptions{}, nil); n != 2 || replayed || err != nil {
				f.Error(n, replayed, err)
			}
		}
		if _, _, err := f.pay(tx, "d", 1, idem.TxOptions{NoSavepoint: true}, declined); err != declined {
			f.Error(err)
		}
		f.commit(tx)
		if n, replayed, err := f.pay(f.begin(), "d", 3, idem.TxOptions{}, nil); n != 3 || replayed || err != nil {
			f.Error(n, replayed, err)
		}
	})
}

// A claim whose row was changed is neither kept nor removed.
func TestKeepAndRemoveAreCompareAndSet(t *testing.T) {
	each(t, func(f *fixture) {
		for _, fails := range []error{nil, errors.New("no money")} {
			tx := f.begin()
			_, _, err := idem.Do(f.Context(), f.store.In(tx).With(idem.TxOptions{NoSavepoint: true}), idem.Key{Scope: "pay", ID: "a"}, idem.Fingerprint{}, func(ctx context.Context) (int, error) {
				if _, err := tx.Exec(ctx, "UPDATE "+f.table+" SET owner = 1 WHERE name <> 'format'"); err != nil {
					f.Error(err)
				}
				return 1, fails
			})
			if !errors.Is(err, idem.ErrTakenOver) || fails != nil && !errors.Is(err, fails) {
				f.Error(err)
			}
			tx.Rollback(f.Context()) //nolint:errcheck // the test begins again
		}
	})
}

func TestOneInFlightIsToldOrWaitedFor(t *testing.T) {
	each(t, func(f *fixture) {
		first := f.begin()
		if _, _, err := f.pay(first, "a", 1, idem.TxOptions{}, nil); err != nil {
			f.Fatal(err)
		}
		tx := f.begin()
		for range 2 {
			if _, _, err := f.pay(tx, "a", 2, idem.TxOptions{NoWait: true}, nil); !errors.Is(err, idem.ErrInFlight) {
				f.Error(err)
			}
		}
		tx.Rollback(f.Context()) //nolint:errcheck // it wrote nothing
		var group sync.WaitGroup
		for i := range 3 {
			group.Go(func() {
				for {
					tx, err := f.pool.BeginTx(f.Context(), pgx.TxOptions{IsoLevel: f.level})
					if err != nil {
						f.Error(err)
						return
					}
					n, replayed, err := f.pay(tx, "a", i+2, idem.TxOptions{}, nil)
					if err == nil {
						err = tx.Commit(f.Context())
					}
					if dialect.Again(err) {
						tx.Rollback(f.Context()) //nolint:errcheck // it is repeated
						continue
					}
					if n != 1 || !replayed || err != nil {
						f.Error(n, replayed, err)
					}
					return
				}
			})
		}
		for waiting := 0; waiting < 3; time.Sleep(5 * time.Millisecond) {
			query := "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid <> pg_backend_pid() AND query LIKE '%" + f.table + "%'"
			if err := f.pool.QueryRow(f.Context(), query).Scan(&waiting); err != nil {
				f.Fatal(err)
			}
		}
		f.commit(first)
		group.Wait()
		if n := f.count("a"); n != 1 {
			f.Error(n)
		}
	})
}

func TestSweepAndFormat(t *testing.T) {
	each(t, func(f *fixture) {
		tx := f.begin()
		for i := range 3 {
			if _, _, err := f.pay(tx, fmt.Sprint("k", i), i, idem.TxOptions{}, nil); err != nil {
				f.Fatal(err)
			}
		}
		f.commit(tx)
		f.exec("UPDATE " + f.table + " SET expires = 1 WHERE name LIKE '%k0'")
		for _, want := range []int{1, 0} {
			if n, err := f.store.Sweep(f.Context(), f.pool, 100); n != want || err != nil {
				f.Error(n, err)
			}
		}
		if !strings.Contains(strings.Join(f.store.Schema(), ";"), f.table) {
			f.Error(f.store.Schema())
		}
		f.exec("UPDATE " + f.table + " SET owner = 2 WHERE name = 'format'")
		if err := f.store.Migrate(f.Context(), f.pool); !errors.Is(err, pawl.ErrMismatch) {
			f.Error(err)
		}
	})
}

func TestOptions(t *testing.T) {
	for _, opts := range []pgxidem.Options{{Table: "a b"}, {Tx: idem.TxOptions{Expiry: 1}}} {
		if _, err := pgxidem.New(&opts); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	if _, err := pgxidem.New(nil); err != nil {
		t.Error(err)
	}
}
