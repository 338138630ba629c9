package bounded_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/internal/bounded"
)

// TestCall: a call ends with its context, and a later result is not lost.
func TestCall(t *testing.T) {
	failed, over := errors.New("failed"), errors.New("over")
	for name, c := range map[string]struct {
		took, bound time.Duration
		fails       error
		want        error
		late        int // the result that late gets
	}{
		"in time":             {time.Second, time.Minute, nil, nil, 0},
		"failed in time":      {time.Second, time.Minute, failed, failed, 0},
		"too late":            {time.Minute, time.Second, nil, over, 7},
		"failed, and late":    {time.Minute, time.Second, failed, over, 0},
		"without a bound":     {time.Minute, 0, nil, nil, 0},
		"ended at the outset": {time.Second, -1, nil, over, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := context.Background()
				if c.bound != 0 {
					bound, cancel := context.WithTimeoutCause(ctx, c.bound, over)
					defer cancel()
					ctx = bound
				}
				late := 0
				got, err := bounded.Call(ctx, func() (int, error) {
					<-time.After(c.took)
					return 7, c.fails
				}, func(n int) { late = n })
				if !errors.Is(err, c.want) || err == nil && got != 7 {
					t.Errorf("%d, %v, want %v", got, err, c.want)
				}
				<-time.After(time.Hour)
				synctest.Wait()
				if late != c.late {
					t.Errorf("late got %d, want %d", late, c.late)
				}
			})
		})
	}
}
