package sqlidem_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/pawl-go/pawl/idem"
)

// calls are the two ways to call in a function of another call.
var calls = map[string]func(ctx context.Context, tx idem.Tx, id string, fn func(context.Context) error) error{
	"Do": func(ctx context.Context, tx idem.Tx, id string, fn func(context.Context) error) error {
		_, _, err := idem.Do(ctx, tx, key(id), print("x"), func(ctx context.Context) (int, error) { return 1, fn(ctx) })
		return err
	},
	"Run": func(ctx context.Context, tx idem.Tx, id string, fn func(context.Context) error) error {
		_, err := idem.Run(ctx, tx, key(id), print("x"), fn)
		return err
	},
}

// A function may call for another key. The error of the function undoes all that it wrote: before that call, in the call, and after
// the call. MySQL forgets a savepoint when a second one has its name.
func TestACallInACall(t *testing.T) {
	late := errors.New("too late")
	each(t, func(f *fixture) {
		for way, call := range calls {
			for _, inner := range []string{"first", "repeat", "failed"} {
				id := way + "-" + inner
				tx := f.begin()
				write := func(name string) func(context.Context) error {
					return func(ctx context.Context) error { return f.write(ctx, tx, name, 1) }
				}
				err := write(id + "-caller")(f.Context())
				if err == nil && inner == "repeat" {
					err = call(f.Context(), f.store.In(tx), id+"-inner", write(id+"-inner"))
				}
				if err != nil {
					f.Fatal(err)
				}
				err = call(f.Context(), f.store.In(tx), id, func(ctx context.Context) error {
					if err := write(id)(ctx); err != nil {
						return err
					}
					if err := call(ctx, f.store.In(tx), id+"-inner", func(ctx context.Context) error {
						if inner == "failed" {
							return errors.Join(write(id+"-inner")(ctx), late)
						}
						return write(id + "-inner")(ctx)
					}); errors.Is(err, late) != (inner == "failed") {
						f.Errorf("%s: %v", id, err)
					}
					return errors.Join(write(id)(ctx), late)
				})
				if !errors.Is(err, late) {
					f.Errorf("%s: %v", id, err)
				}
				f.commit(tx)
				want := map[string]int{id: 0, id + "-inner": map[bool]int{true: 1}[inner == "repeat"], id + "-caller": 1}
				for name, n := range want {
					if is := f.count(name); is != n {
						f.Errorf("%s has %d effects, want %d", name, is, n)
					}
				}
				tx = f.begin()
				for _, again := range []string{id, id + "-inner"} {
					if err := call(f.Context(), f.store.In(tx), again, write(again)); err != nil {
						f.Errorf("%s again: %v", again, err)
					}
				}
				f.commit(tx)
				if a, b := f.count(id), f.count(id+"-inner"); a != 1 || b != 1 {
					f.Errorf("%s has %d and %d effects", id, a, b)
				}
			}
		}
	})
}

// A function goes on after the failure of its own call for another key.
func TestAFailedCallInACall(t *testing.T) {
	each(t, func(f *fixture) {
		for way, call := range calls {
			tx := f.begin()
			if err := call(f.Context(), f.store.In(tx), way, func(ctx context.Context) error {
				if err := f.write(ctx, tx, way, 1); err != nil {
					return err
				}
				err := call(ctx, f.store.In(tx), way+"-inner", func(ctx context.Context) error {
					if err := f.write(ctx, tx, way+"-inner", 1); err != nil {
						f.Error(err)
					}
					_, err := tx.ExecContext(ctx, "nonsense")
					return err
				})
				if err == nil {
					f.Error("nonsense is a statement")
				}
				return f.write(ctx, tx, way, 2)
			}); err != nil {
				f.Error(way, err)
			}
			f.commit(tx)
			if a, b := f.count(way), f.count(way+"-inner"); a != 2 || b != 0 {
				f.Errorf("%s has %d and %d effects", way, a, b)
			}
		}
	})
}

// A key that shall never expire does not expire at once.
func TestTheLongestExpiry(t *testing.T) {
	once(t, func(f *fixture) {
		for n := range 2 {
			tx := f.begin()
			_, replayed, err := f.pay(tx, "a", "x", n, idem.TxOptions{Expiry: math.MaxInt64})
			if replayed != (n == 1) || err != nil {
				f.Error(replayed, err)
			}
			f.commit(tx)
		}
		if n, err := f.store.Sweep(f.Context(), f.db, 10); n != 0 || err != nil {
			f.Error(n, err)
		}
	})
}
