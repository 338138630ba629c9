package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
)

// fate is what becomes of a message after a run.
type fate int

const (
	acked  fate = iota // the message took effect, now or before
	again              // the message runs again, and the failure does not count
	failed             // the message runs again, and the failure counts
	dead               // the message never runs again
)

// outcome is how a run ended.
type outcome struct {
	err       error
	handler   error // what the handler returned, nil if it did not run
	committed bool  // the database was asked for the commit
	gone      bool  // the database did not take the rollback after an error of the handler
	stopped   bool  // the consumer has ended the run
}

// judge decides what becomes of a message. Trouble of the database is not the fault of the message, and neither is the end of the
// consumer, so such failures do not count. A commit that the database refuses counts, because it may be refused for ever. An error of the handler may come from
// elsewhere, such as io.EOF from a payload that ends too early. So the transaction itself says whether the database is gone.
func judge(o outcome) fate {
	is := func(all ...error) bool {
		return slices.ContainsFunc(all, func(one error) bool { return errors.Is(o.err, one) })
	}
	switch {
	case o.err == nil, is(ErrGone) && o.handler == nil:
		return acked
	case is(errWorn), errors.Is(o.handler, ErrRefused):
		return dead
	case o.stopped && (o.committed || is(context.Canceled, sql.ErrTxDone)): // the transaction ends with the run
		return again
	case o.handler != nil && is(context.DeadlineExceeded): // which is a network error, too
		return failed
	case dialect.Again(o.err), dialect.Full(o.err), dialect.Lost(o.err) && (o.handler == nil || o.gone):
		return again
	case o.handler != nil:
		return failed
	case is(ErrTooOld, idem.ErrReused, pawl.ErrInvalid):
		return dead
	case o.committed && !is(context.Canceled, context.DeadlineExceeded):
		return failed
	}
	return again
}

// fate of a message after a run, with what the message has behind it. Reason is that of a dead letter.
func (it *item) fate(o outcome, maxAttempts int) (f fate, reason string) {
	f = judge(o)
	switch f {
	case failed:
		it.failures++
		it.tries++
		if it.failures >= maxAttempts {
			return dead, fmt.Sprintf("the message failed %d times: %v", it.failures, o.err)
		}
	case again:
		it.tries++
	case dead:
		reason = o.err.Error()
	}
	return f, reason
}

// errWorn says that the broker has delivered a message too often.
var errWorn = errors.New("the message may end each process that runs it")

// backoff is the wait after so many failures in a row. The wait doubles with each, between least and most.
func backoff(tries int, least, most time.Duration) time.Duration {
	wait := least
	for range tries - 1 {
		if wait >= most/2 {
			return most
		}
		wait *= 2
	}
	return wait
}
