package dialect

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Repeat calls again after such errors only, and pauses ever longer, up to 100 ms.
func TestRepeat(t *testing.T) {
	such, other := errors.New("such"), errors.New("other")
	for _, end := range []error{nil, other} {
		synctest.Test(t, func(t *testing.T) {
			var pauses []time.Duration
			last := time.Now()
			err := Repeat(t.Context(), func(err error) bool { return err == such }, func() error {
				pauses, last = append(pauses, time.Since(last)), time.Now()
				if len(pauses) < 12 {
					return such
				}
				return end
			})
			if err != end || len(pauses) != 12 {
				t.Errorf("%d calls, %v", len(pauses), err)
			}
			for i, pause := range pauses[1:] {
				if most := min(time.Millisecond<<i, 100*time.Millisecond); pause < most/2 || pause > most {
					t.Errorf("pause %d is %v, and at most %v is allowed", i, pause, most)
				}
			}
		})
	}
}

// Repeat returns the last error as soon as ctx ends, also within a pause.
func TestRepeatEndsWithItsContext(t *testing.T) {
	such := errors.New("such")
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 333*time.Millisecond)
		defer stop()
		began, calls := time.Now(), 0
		err := Repeat(ctx, func(error) bool { return true }, func() error { calls++; return such })
		if took := time.Since(began); err != such || took != 333*time.Millisecond {
			t.Errorf("%d calls, %v after %v", calls, err, took)
		}
		if err := Repeat(ctx, func(error) bool { return true }, func() error { calls++; return such }); err != such || time.Since(began) != 333*time.Millisecond {
			t.Errorf("a ctx that has ended: %v", err)
		}
	})
}

// Repeat with Tries calls so many times at most, and only after an error that another transaction was in the way.
func TestTries(t *testing.T) {
	busy, other := &mysql.MySQLError{Number: 1213}, errors.New("other")
	for end, want := range map[error]int{busy: 3, other: 2} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			err := Repeat(t.Context(), Tries(3), func() error {
				if calls++; calls == 1 {
					return busy
				}
				return end
			})
			if calls != want || err != end {
				t.Errorf("%d calls, %v", calls, err)
			}
		})
	}
}
