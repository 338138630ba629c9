package main

import (
	"context"
	"database/sql"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/fence/sqlfence"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/sqlidem"
	"github.com/pawl-go/pawl/idem/sqlupdate"
	"github.com/pawl-go/pawl/idem/state"
	"github.com/pawl-go/pawl/idem/stock"
)

// content is the fingerprint of the request. All requests of this program have the same content.
var content = idem.FingerprintOf([]byte("POST /pay"), []byte(order))

// keyOf separates the keys of the forms. A real server has the identity of its client in the scope.
func keyOf(form, key string) idem.Key { return idem.Key{Scope: form + "/user-7", ID: key} }

func once(ctx context.Context, s *shop, key string) error {
	first, err := idem.Once(ctx, idem.NewLeases(s.client, nil), keyOf("once", key), content)
	if err != nil || !first {
		return err
	}
	if err := s.bank(ctx, ""); err != nil {
		return err
	}
	s.middle()
	return nil
}

func onceBefore(ctx context.Context, s *shop, key string) error {
	first, err := idem.Once(ctx, idem.NewLeases(s.client, nil), keyOf("onceBefore", key), content)
	if err != nil || !first {
		return err
	}
	s.middle()
	return s.bank(ctx, "")
}

func leaseWithoutKey(ctx context.Context, s *shop, key string) error {
	return lease(ctx, s, keyOf("leaseWithoutKey", key), "")
}

func leaseWithKey(ctx context.Context, s *shop, key string) error {
	k := keyOf("leaseWithKey", key)
	return lease(ctx, s, k, k.Name())
}

func lease(ctx context.Context, s *shop, key idem.Key, bankKey string) error {
	_, _, err := idem.NewLeases(s.client, nil).Do(ctx, key, content, nil, func(ctx context.Context, _ *idem.Claim) ([]byte, error) {
		if err := s.bank(ctx, bankKey); err != nil {
			return nil, err
		}
		s.middle()
		return []byte("paid"), nil
	})
	return err
}

// inTx runs f in a transaction. The client repeats the request after an error.
func inTx(ctx context.Context, db *sql.DB, f func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // does nothing after the commit
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func table(ctx context.Context, s *shop, key string) error {
	keys, err := sqlidem.New(dialect.SQLite, nil)
	if err != nil {
		return err
	}
	return inTx(ctx, s.db, func(tx *sql.Tx) error {
		_, _, err := idem.Do(ctx, keys.In(tx), keyOf("table", key), content, func(ctx context.Context) (string, error) {
			if err := pay(ctx, tx); err != nil {
				return "", err
			}
			s.middle()
			return "paid", nil
		})
		return err
	})
}

var orders = state.Table[string]{Dialect: dialect.SQLite, Name: "orders", Machine: state.Must(state.New(
	[]string{"created", "paid", "shipped", "cancelled"},
	state.Transition[string]{From: "created", To: "paid"},
	state.Transition[string]{From: "paid", To: "shipped"},
	state.Transition[string]{From: "created", To: "cancelled"}))}

func machine(ctx context.Context, s *shop, _ string) error {
	return inTx(ctx, s.db, func(tx *sql.Tx) error {
		result, err := orders.Apply(ctx, tx, state.Columns{"id": order}, "paid", nil)
		if err != nil || result.Outcome != state.Moved {
			return err
		}
		if err := pay(ctx, tx); err != nil {
			return err
		}
		s.middle()
		return nil
	})
}

func lockCheckUpdate(ctx context.Context, s *shop, _ string) error {
	updater := sqlupdate.New(s.db, sqlfence.Marks{Dialect: dialect.SQLite}, nil)
	_, err := updater.Do(ctx, s.client.Mutex("order/"+order),
		func(ctx context.Context, tx *sql.Tx) (done bool, err error) {
			err = tx.QueryRowContext(ctx, "SELECT state = 'paid' FROM orders WHERE id = ?", order).Scan(&done)
			return done, err
		},
		func(ctx context.Context, tx *sql.Tx) error {
			if err := pay(ctx, tx); err != nil {
				return err
			}
			s.middle()
			_, err := tx.ExecContext(ctx, "UPDATE orders SET state = 'paid' WHERE id = ?", order)
			return err
		})
	return err
}

func stocks() (*stock.Table, error) {
	return stock.New(dialect.SQLite, &stock.Options{Parts: segment})
}

func segments(ctx context.Context, s *shop, key string) error {
	keys, err := sqlidem.New(dialect.SQLite, nil)
	if err != nil {
		return err
	}
	stocks, err := stocks()
	if err != nil {
		return err
	}
	return inTx(ctx, s.db, func(tx *sql.Tx) error {
		_, err := idem.Run(ctx, keys.In(tx), keyOf("segments", key), content, func(ctx context.Context) error {
			if err := stocks.Take(ctx, tx, item, 1); err != nil {
				return err
			}
			s.middle()
			return nil
		})
		return err
	})
}

func taken(ctx context.Context, db *sql.DB) (int, error) {
	stocks, err := stocks()
	if err != nil {
		return 0, err
	}
	left, err := stocks.Total(ctx, db, item)
	return units - int(left), err
}
