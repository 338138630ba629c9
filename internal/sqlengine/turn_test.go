package sqlengine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

// TestUnsentIsNotLeft: of the requests for a name whose steps hang two are sent. The others were
// never in the store, and to leave asks nothing.
func TestUnsentIsNotLeft(t *testing.T) {
	e := postgres(t, "model")
	s := sessiontest.Open(t, e, time.Minute)
	tx, err := e.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // it is to end
	if _, err := tx.Exec(`SELECT * FROM model.step('poll', '', 'unsent', '', '', '', 0, '', 0, 0, 0)`); err != nil {
		t.Fatal(err)
	}
	claim := func(id string) *engine.Claim {
		return &engine.Claim{Spec: sessiontest.Fair, Resource: "unsent", ID: s.ID() + id, Owner: s.ID() + id, Weight: sessiontest.Fair.Capacity}
	}
	first := make(chan error, 2)
	ctx, cancel := context.WithCancel(t.Context())
	for i := range cap(first) {
		go func() { _, err := s.Enter(ctx, claim(fmt.Sprint("first", i)), true); first <- err }()
	}
	sessiontest.Until(t, "the first ones hang in the server", func() (hang bool) {
		err := e.db.QueryRow(`SELECT count(*) = 2 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted`).Scan(&hang)
		return err == nil && hang
	})
	soon, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if _, err := s.Enter(soon, claim("second"), true); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if err := s.Leave(sessiontest.Soon(t), "unsent", claim("second").ID); !errors.Is(err, engine.ErrGone) {
		t.Error(err)
	}
	cancel()
	for range cap(first) {
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}
