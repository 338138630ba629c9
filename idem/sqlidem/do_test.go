package sqlidem_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/pawl-go/pawl/idem"
)

type payment struct {
	ID       int
	Declined bool
}

func key(id string) idem.Key { return idem.Key{Scope: "pay/u7", ID: id} }

func print(text string) idem.Fingerprint { return idem.FingerprintOf([]byte(text)) }

// pay is a call whose function writes one effect.
func (f *fixture) pay(tx *sql.Tx, id, content string, n int, opts idem.TxOptions) (payment, bool, error) {
	f.Helper()
	return idem.Do(f.Context(), f.store.In(tx).With(opts), key(id), print(content), func(ctx context.Context) (payment, error) {
		return payment{ID: n, Declined: true}, f.write(ctx, tx, id, n)
	})
}

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
		for range 2 {
			tx := f.begin()
			if p, replayed, err := f.pay(tx, "a", "x", 2, idem.TxOptions{}); p != (payment{1, true}) || !replayed || err != nil {
				f.Fatal(p, replayed, err)
			}
			if p, replayed, err := f.pay(tx, "a", "y", 2, idem.TxOptions{}); p != (payment{}) || replayed || !errors.Is(err, idem.ErrReused) {
				f.Fatal(p, replayed, err)
			}
			f.commit(tx)
		}
		if n := f.count("a"); n != 1 {
			f.Error(n)
		}
	})
}
