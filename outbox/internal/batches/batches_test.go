package batches

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// rows is a table in which a statement takes a time by itself, and a time for each row. Some rows are refused.
type rows struct {
	there      map[int]bool
	fixed, row time.Duration
	refused    func(key int) bool
	statements int
}

var errRefused = errors.New("refused")

func (r *rows) delete(ctx context.Context, keys []int) (int, error) {
	r.statements++
	timer := time.NewTimer(r.fixed + time.Duration(len(keys))*r.row)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-timer.C:
	}
	for _, key := range keys {
		if r.refused != nil && r.refused(key) {
			return len(keys), errRefused // such a number means nothing
		}
	}
	for _, key := range keys {
		delete(r.there, key)
	}
	return len(keys), nil
}

// TestDelete: all rows that can be deleted are, and in good time, whatever makes a statement slow.
func TestDelete(t *testing.T) {
	for name, c := range map[string]struct {
		fixed, row    time.Duration
		refused       func(int) bool
		left, refusal int
		most          time.Duration // that 5,000 rows may take
	}{
		"quick":                                  {fixed: time.Millisecond, most: time.Second},
		"large rows":                             {row: 5 * time.Millisecond, most: 2 * time.Minute}, // 25 s, as long again for rests, and the statements that took too long
		"very large rows":                        {row: 2 * time.Second, most: 15 * time.Hour},       // each second statement is in vain
		"a slow network":                         {fixed: 120 * time.Millisecond, most: 20 * time.Second},
		"a very slow network":                    {fixed: time.Second, most: 3 * time.Minute},
		"a slow network and a refused row":       {fixed: 120 * time.Millisecond, refused: func(k int) bool { return k == 77 }, left: 1, refusal: 1, most: time.Minute},
		"a very slow network and a refused row":  {fixed: time.Second, refused: func(k int) bool { return k == 77 }, left: 1, refusal: 1, most: 10 * time.Minute},
		"a network that takes most of Bound":     {fixed: 2 * time.Second, refused: func(k int) bool { return k == 77 }, left: 1, refusal: 1, most: 10 * time.Minute},
		"the first and the last row are refused": {refused: func(k int) bool { return k == 0 || k == 4999 }, left: 2, refusal: 2, most: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &rows{there: map[int]bool{}, fixed: c.fixed, row: c.row, refused: c.refused}
				var keys []int
				for i := range 5000 {
					r.there[i] = true
					keys = append(keys, i)
				}
				began := time.Now()
				is := Delete(t.Context(), &Deleter{Bound: 3 * time.Second}, keys, r.delete)
				if is.Tried != 5000 || is.Deleted != 5000-c.left || is.Refused != c.refusal || len(r.there) != c.left || (is.Err != nil) != (c.refusal > 0) {
					t.Errorf("%+v, %d rows are left", is, len(r.there))
				}
				if took := time.Since(began); took > c.most {
					t.Errorf("it took %v and %d statements", took, r.statements)
				}
			})
		})
	}
}

// TestEveryRowIsRefused: a call ends after 20 rows and few statements, and says where.
func TestEveryRowIsRefused(t *testing.T) {
	r := &rows{refused: func(int) bool { return true }}
	is := Delete(t.Context(), &Deleter{Bound: time.Second}, make([]int, 5000), r.delete)
	if is.Tried != enough || is.Refused != enough || is.Deleted != 0 || !errors.Is(is.Err, errRefused) || r.statements > enough+5 {
		t.Errorf("%+v after %d statements", is, r.statements)
	}
}

// TestEndOfTheContext: the row whose statement was interrupted was not refused.
func TestEndOfTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		r := &rows{fixed: time.Minute}
		if is := Delete(ctx, &Deleter{Bound: time.Hour}, make([]int, 1), r.delete); is != (Result{}) || r.statements != 1 {
			t.Errorf("%+v after %d statements", is, r.statements)
		}
	})
}
