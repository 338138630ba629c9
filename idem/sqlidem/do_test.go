package sqlidem_test

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
)

type payment struct {
	ID       int
	Declined bool
}

func key(id string) idem.Key { return idem.Key{Scope: "pay/u7", ID: id} }

func print(text string) idem.Fingerprint { return idem.FingerprintOf([]byte(text)) }

// pay is a call whose function writes an effect.
func (f *fixture) pay(tx dialect.DB, id, content string, n int, opts idem.TxOptions) (payment, bool, error) {
	f.Helper()
	return idem.Do(f.Context(), f.store.In(tx).With(opts), key(id), print(content), func(ctx context.Context) (payment, error) {
		return payment{ID: n, Declined: true}, f.write(ctx, tx, id, n)
	})
}

// pays is a call in a transaction of its own, which is repeated while others are in the way.
func (f *fixture) pays(id string, n int, wantReplayed bool) {
	f.Helper()
	for {
		tx := f.begin()
		p, replayed, err := f.pay(tx, id, "x", n, idem.TxOptions{})
		if err == nil {
			err = tx.Commit()
		}
		if dialect.Again(err) {
			tx.Rollback() //nolint:errcheck // the database may have done so
			continue
		}
		if err != nil || replayed != wantReplayed || !wantReplayed && p.ID != n {
			f.Errorf("%+v, %t, %v", p, replayed, err)
		}
		return
	}
}

// A declined payment is a result as any other.
func TestARepeatGetsTheKeptResult(t *testing.T) {
	each(t, func(f *fixture) {
		tx := f.begin()
		if p, replayed, err := f.pay(tx, "a", "x", 1, idem.TxOptions{}); p != (payment{1, true}) || replayed || err != nil {
			f.Fatal(p, replayed, err)
		}
		if p, replayed, err := f.pay(tx, "a", "x", 2, idem.TxOptions{}); p != (payment{1, true}) || !replayed || err != nil {
			f.Fatal("in the same transaction:", p, replayed, err)
		}
		f.commit(tx)
		f.pays("a", 2, true)
		if n := f.count("a"); n != 1 {
			f.Error(n)
		}
	})
}

// The record of a completed call lost its fingerprint elsewhere, so that each repeat failed
// (aws-powertools/powertools-lambda-typescript#5705). A kept result was given out before the
// fingerprint was compared (aws-powertools/powertools-lambda-python#3821).
func TestACompletedKeyKeepsItsFingerprint(t *testing.T) {
	each(t, func(f *fixture) {
		f.pays("a", 1, false)
		tx := f.begin()
		for range 2 {
			if p, replayed, err := f.pay(tx, "a", "y", 2, idem.TxOptions{}); p != (payment{}) || replayed || !errors.Is(err, idem.ErrReused) {
				f.Fatal(p, replayed, err)
			}
		}
		f.commit(tx)
		f.pays("a", 2, true)
		if n := f.count("a"); n != 1 {
			f.Error(n)
		}
	})
}

// The writes of fn are undone with its claim, and the rest of the transaction stays.
func TestAnErrorRemovesTheClaimEvenIfTheCallerCommits(t *testing.T) {
	declined := errors.New("no money")
	fails := map[string]func(ctx context.Context, tx dialect.DB) error{
		"an error": func(context.Context, dialect.DB) error { return declined },
		"a failed statement": func(ctx context.Context, tx dialect.DB) error {
			_, err := tx.ExecContext(ctx, "nonsense")
			return errors.Join(declined, err)
		},
		"a panic":                  func(context.Context, dialect.DB) error { panic(declined) },
		"the end of its goroutine": func(context.Context, dialect.DB) error { runtime.Goexit(); return nil },
	}
	try := func(f *fixture, fail func(context.Context, dialect.DB) error) (failure, commit error) {
		tx := f.begin()
		if err := f.write(f.Context(), tx, "before", 1); err != nil {
			f.Fatal(err)
		}
		var group sync.WaitGroup
		group.Go(func() {
			defer func() {
				if recovered := recover(); recovered != nil {
					failure = recovered.(error)
				}
			}()
			failure = declined // for Goexit
			_, _, failure = idem.Do(f.Context(), f.store.In(tx), key("a"), print("x"), func(ctx context.Context) (int, error) {
				if err := f.write(ctx, tx, "a", 1); err != nil {
					f.Error(err)
				}
				return 1, fail(ctx, tx)
			})
		})
		group.Wait()
		return failure, tx.Commit()
	}
	each(t, func(f *fixture) {
		for name, fail := range fails {
			err, commit := try(f, fail)
			// A busy PostgreSQL may refuse a serializable transaction that is alone with its rows.
			for tries := 1; commit != nil && f.on.Level == sql.LevelSerializable && tries < 5; tries++ {
				err, commit = try(f, fail)
			}
			if commit != nil || !errors.Is(err, declined) || name == "an error" && err != declined {
				f.Errorf("%s: %v, %v", name, err, commit)
			}
			if n := f.count("a"); n != 0 {
				f.Errorf("%s: %d effects", name, n)
			}
		}
		if n := f.count("before"); n != len(fails) {
			f.Error(n)
		}
		f.pays("a", 1, false)
		f.pays("a", 2, true)
	})
}

// The first failure in a connection is the case that a client has prepared nothing for.
func TestAFailedStatementOfAFreshConnection(t *testing.T) {
	once(t, func(f *fixture) {
		f.db.SetMaxIdleConns(0)
		tx := f.begin()
		if err := f.write(f.Context(), tx, "caller", 1); err != nil {
			f.Fatal(err)
		}
		if _, _, err := idem.Do(f.Context(), f.store.In(tx), key("a"), print("x"), func(ctx context.Context) (int, error) {
			_, err := tx.ExecContext(ctx, "nonsense")
			return 1, err
		}); err == nil {
			f.Error("nonsense is a statement")
		}
		if err := tx.Commit(); err != nil {
			f.Errorf("the caller cannot commit: %v", err)
		}
		if n := f.count("caller"); n != 1 {
			f.Errorf("the caller's row is there %d times", n)
		}
	})
}

func TestWithoutSavepointTheClaimIsRemoved(t *testing.T) {
	each(t, func(f *fixture) {
		declined := errors.New("no money")
		tx := f.begin()
		in := f.store.In(tx).With(idem.TxOptions{NoSavepoint: true})
		if _, _, err := idem.Do(f.Context(), in, key("a"), print("x"), func(context.Context) (int, error) { return 1, declined }); err != declined {
			f.Error(err)
		}
		if _, err := idem.Run(f.Context(), in, key("b"), print("x"), func(context.Context) error { return declined }); err != declined {
			f.Error(err)
		}
		f.commit(tx)
		f.pays("a", 1, false)
		f.pays("b", 1, false)
		if f.on.Dialect != dialect.PostgreSQL {
			return
		}
		tx = f.begin() // where a failed statement leaves nothing to remove
		in = f.store.In(tx).With(idem.TxOptions{NoSavepoint: true})
		_, err := idem.Run(f.Context(), in, key("c"), print("x"), func(ctx context.Context) error { _, err := tx.ExecContext(ctx, "nonsense"); return err })
		if err == nil || strings.Contains(err.Error(), "remove") {
			f.Error(err)
		}
		if err := tx.Commit(); err == nil {
			f.Error("a failed transaction is committed")
		}
		f.pays("c", 1, false)
	})
}

func TestRunHasNoResult(t *testing.T) {
	each(t, func(f *fixture) {
		for i := range 3 {
			tx := f.begin()
			replayed, err := idem.Run(f.Context(), f.store.In(tx), key("a"), print("x"), func(ctx context.Context) error { return f.write(ctx, tx, "a", 1) })
			if replayed != (i > 0) || err != nil {
				f.Error(replayed, err)
			}
			if i == 1 { // a result cannot be made up
				if _, _, err := f.pay(tx, "a", "x", 1, idem.TxOptions{}); !errors.Is(err, idem.ErrReused) {
					f.Error(err)
				}
			}
			f.commit(tx)
		}
		f.pays("b", 1, false)
		tx := f.begin()
		if replayed, err := idem.Run(f.Context(), f.store.In(tx), key("b"), print("x"), nil); !replayed || err != nil {
			f.Error(replayed, err)
		}
		if n := f.count("a"); n != 1 {
			f.Error(n)
		}
	})
}

func TestAResultHasABound(t *testing.T) {
	each(t, func(f *fixture) {
		text := strings.Repeat("x", 1<<20)
		call := func(tx idem.Tx, id string, result any) (any, error) {
			got, _, err := idem.Do(f.Context(), tx, key(id), print("x"), func(context.Context) (any, error) { return result, nil })
			return got, err
		}
		tx := f.begin()
		in := f.store.In(tx)
		if _, err := call(in, "large", text); !errors.Is(err, idem.ErrTooLarge) || !strings.Contains(err.Error(), "1048578 bytes") {
			f.Error(err)
		}
		if _, err := call(in, "no JSON", func() {}); err == nil {
			f.Error("a function is encoded")
		}
		for range 2 { // the same key, because a failed call leaves none
			if got, err := call(in.With(idem.TxOptions{MaxResult: 2 << 20}), "large", text); got != text || err != nil {
				f.Errorf("%T, %v", got, err)
			}
		}
		if _, err := call(in, "no JSON", []byte(nil)); err != nil {
			f.Error(err)
		}
		f.commit(tx)
	})
}

// codec keeps texts as they are.
type codec struct{ broken bool }

func (codec) Encode(result any) ([]byte, error) { return []byte(result.(string)), nil }
func (c codec) Decode(data []byte, result any) error {
	if *result.(*string) = string(data); c.broken {
		return errors.New("not readable")
	}
	return nil
}

func TestCodec(t *testing.T) {
	each(t, func(f *fixture) {
		for i, text := range []string{"", "\x00\xff"} {
			tx := f.begin()
			for _, broken := range []bool{false, false, true} {
				in := f.store.In(tx).With(idem.TxOptions{Codec: codec{broken}})
				got, _, err := idem.Do(f.Context(), in, key(strings.Repeat("k", i+1)), print("x"), func(context.Context) (string, error) { return text, nil })
				if broken != (err != nil) || !broken && got != text || broken && got != "" {
					f.Errorf("%q, %v", got, err)
				}
			}
			f.commit(tx)
		}
	})
}

// Elsewhere a record was updated and deleted without a condition
// (_update_record and _delete_record of aws-powertools/powertools-lambda-python).
func TestKeepAndRemoveAreCompareAndSet(t *testing.T) {
	each(t, func(f *fixture) {
		for _, change := range []string{"DELETE FROM " + f.table + " WHERE name <> 'format'", "UPDATE " + f.table + " SET owner = 1 WHERE name <> 'format'",
			"UPDATE " + f.table + " SET state = 2 WHERE name <> 'format'"} {
			for _, fails := range []error{nil, errors.New("no money")} {
				tx := f.begin()
				in := f.store.In(tx).With(idem.TxOptions{NoSavepoint: true})
				_, _, err := idem.Do(f.Context(), in, key("a"), print("x"), func(ctx context.Context) (int, error) {
					if _, err := tx.ExecContext(ctx, change); err != nil {
						f.Error(err)
					}
					return 1, fails
				})
				if !errors.Is(err, idem.ErrTakenOver) || !errors.Is(err, fails) && fails != nil {
					f.Errorf("%s: %v", change, err)
				}
				tx.Rollback() //nolint:errcheck // the test begins again
			}
		}
	})
}

// A transaction that was committed before fn returned leaves a claim that nobody may run again. So does a
// call for the same key inside of fn.
func TestUnfinished(t *testing.T) {
	each(t, func(f *fixture) {
		tx := f.begin()
		_, _, err := idem.Do(f.Context(), f.store.In(tx), key("a"), print("x"), func(ctx context.Context) (int, error) {
			if _, _, err := f.pay(tx, "a", "x", 1, idem.TxOptions{}); !errors.Is(err, idem.ErrUnfinished) {
				f.Error(err)
			}
			return 1, tx.Commit()
		})
		if !errors.Is(err, sql.ErrTxDone) {
			f.Error(err)
		}
		for range 2 {
			if _, _, err := f.pay(f.begin(), "a", "x", 1, idem.TxOptions{NoWait: true}); !errors.Is(err, idem.ErrUnfinished) {
				f.Error(err)
			}
			if f.on.Dialect == dialect.SQLite {
				break // whose writer is that transaction
			}
		}
	})
}

// A store that fails must not let the call pass (aura-vault#581, golang-app/ecommerce#117).
func TestAFailedClaimRunsNothing(t *testing.T) {
	each(t, func(f *fixture) {
		never := func(context.Context) (int, error) { f.Error("it runs"); return 0, nil }
		ended := f.begin()
		f.commit(ended)
		if _, _, err := idem.Do(f.Context(), f.store.In(ended), key("a"), print("x"), never); !errors.Is(err, sql.ErrTxDone) {
			f.Error(err)
		}
		for name, bad := range map[string]struct {
			tx  idem.Tx
			key idem.Key
		}{
			"no store":  {idem.Tx{}, key("a")},
			"Key.ID":    {f.store.In(ended), key("")},
			"Expiry":    {f.store.In(ended).With(idem.TxOptions{Expiry: 1}), key("a")},
			"MaxResult": {f.store.In(ended).With(idem.TxOptions{MaxResult: -1}), key("a")},
		} {
			if _, _, err := idem.Do(f.Context(), bad.tx, bad.key, print("x"), never); !errors.Is(err, pawl.ErrInvalid) {
				f.Errorf("%s: %v", name, err)
			}
		}
	})
}
