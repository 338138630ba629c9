package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawl-go/pawl/idem"
)

// remote is an error of a service that the handler calls.
type remote struct{ Code uint32 }

func (remote) Error() string { return "not found" }

// The fate of a message depends on whose fault the failure is.
func TestJudge(t *testing.T) {
	full := &pgconn.PgError{Code: "53100"}
	bad, wrapped := errors.New("bad"), func(err error) error { return fmt.Errorf("inbox: %w", err) }
	for name, c := range map[string]struct {
		o    outcome
		want fate
	}{
		"well":                          {outcome{}, acked},
		"handler failed":                {outcome{err: bad, handler: bad}, failed},
		"handler refused":               {outcome{err: wrapped(ErrRefused), handler: wrapped(ErrRefused)}, dead},
		"handler was stopped":           {outcome{err: context.DeadlineExceeded, handler: context.DeadlineExceeded}, failed},
		"handler says too old":          {outcome{err: ErrTooOld, handler: ErrTooOld}, failed},
		"handler lost the database":     {outcome{err: io.EOF, handler: io.EOF, gone: true}, again},
		"handler met an end":            {outcome{err: io.EOF, handler: io.EOF}, failed},
		"handler failed at the end":     {outcome{err: bad, handler: bad, gone: true, stopped: true}, failed},
		"handler ended at the end":      {outcome{err: context.Canceled, handler: context.Canceled, stopped: true}, again},
		"handler refused at the end":    {outcome{err: wrapped(ErrRefused), handler: wrapped(ErrRefused), stopped: true}, dead},
		"commit at the end":             {outcome{err: sql.ErrTxDone, committed: true, stopped: true}, again},
		"handler canceled a call":       {outcome{err: context.Canceled, handler: context.Canceled}, failed},
		"handler has a code of its own": {outcome{err: wrapped(remote{5}), handler: remote{5}}, failed},
		"no transaction began":          {outcome{err: bad}, again},
		"another works on it":           {outcome{err: wrapped(idem.ErrInFlight)}, again},
		"too old":                       {outcome{err: wrapped(ErrTooOld)}, dead},
		"from ahead":                    {outcome{err: wrapped(ErrAhead)}, again},
		"the ID has another content":    {outcome{err: wrapped(idem.ErrReused)}, dead},
		"delivered too often":           {outcome{err: wrapped(errWorn)}, dead},
		"handler met a full disk":       {outcome{err: wrapped(full), handler: full}, again},
		"commit met a full disk":        {outcome{err: wrapped(full), committed: true}, again},
		"commit refused":                {outcome{err: bad, committed: true}, failed},
		"commit lost":                   {outcome{err: io.ErrUnexpectedEOF, committed: true}, again},
		"commit did not answer in time": {outcome{err: context.DeadlineExceeded, committed: true}, again},
	} {
		if got := judge(c.o); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// Only failures that count make a dead letter.
func TestFate(t *testing.T) {
	bad := errors.New("bad")
	it := &item{}
	for range 10 {
		if f, _ := it.fate(outcome{err: io.EOF}, 3); f != again {
			t.Fatal(f)
		}
	}
	for n := 1; n <= 3; n++ {
		f, reason := it.fate(outcome{err: bad, handler: bad}, 3)
		if (f == dead) != (n == 3) || (reason != "") != (n == 3) {
			t.Errorf("after %d: %d, %q", n, f, reason)
		}
	}
}

func TestBackoff(t *testing.T) {
	for tries, want := range map[int]time.Duration{1: 2, 2: 4, 3: 8, 4: 10, 1_000_000: 10} {
		if got := backoff(tries, 2, 10); got != want {
			t.Errorf("%d: %v, want %v", tries, got, want)
		}
	}
}
