package work_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/internal/faulty"
	"github.com/pawl-go/pawl/work"
)

// TestGrace: a caller that does not wait hears of a restart grace, and not that the queue is empty. A grace may be that of some names only.
func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New())
		q := work.New(c, "q", nil)
		noErr(t, q.Put(t.Context(), tasks(0, 3)...))
		noErr(t, mustClaim(t, q).Bury(t.Context()))
		grace := func(context.Context, func(context.Context) error) error {
			return fmt.Errorf("enter: %w", &engine.GraceError{Grace: engine.Grace{Age: time.Second, Left: time.Minute}})
		}
		store.Set(grace, faulty.Enter)
		_, err := q.TryClaim(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired, pawl.ErrGrace)
		wantErr(t, q.DeadLetters().Retry(t.Context(), letters(t, q)[0].ID), pawl.ErrNotAcquired, pawl.ErrGrace)
		store.Heal()
		store.Set(grace, faulty.Enter+" pawl:pool/q/1.1")
		item, err := q.TryClaim(t.Context())
		noErr(t, err)
		if string(item.Data) != "item 2" {
			t.Errorf("got %q", item.Data)
		}
		noErr(t, item.Done(t.Context()))
		_, err = q.TryClaim(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired, pawl.ErrGrace)
	})
}
