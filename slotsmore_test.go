package pawl_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

// TestTakeBesideClose: Close refuses the first requests of a taker, and the session still gets a permit. Take returns.
func TestTakeBesideClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		pawl.Closing(c)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		_, err := c.Slots("s", 2).Take(ctx)
		wantErr(t, err, pawl.ErrClosed)
		if took := time.Since(start); took > 0 {
			t.Errorf("took %v", took)
		}
	})
}
