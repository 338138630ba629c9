package cli

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// errorLog tells an operator the errors of a service, and no flood of them. errorLog is safe for concurrent use.
type errorLog struct {
	since   atomic.Int64 // when the first error of this while was printed, in Unix seconds
	printed atomic.Int64 // errors since
	unsaid  atomic.Int64 // errors that were not printed
}

const (
	logWhile = 10 // seconds
	mostLogs = 5  // errors that are printed in a while
)

// failed prints an error, unless there were many.
func (l *errorLog) failed(err error) {
	if now := time.Now().Unix(); now-l.since.Load() >= logWhile {
		l.since.Store(now)
		l.printed.Store(0)
	}
	if l.printed.Add(1) > mostLogs {
		l.unsaid.Add(1)
		return
	}
	complain(err)
}

// rest tells how many errors were not printed since the last rest.
func (l *errorLog) rest() {
	if n := l.unsaid.Swap(0); n > 0 {
		news("%d further errors like these", n)
	}
}

// watch tells them now and then, until ctx ends.
func (l *errorLog) watch(ctx context.Context) error {
	tick := time.NewTicker(logWhile * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			l.rest()
			return nil
		case <-tick.C:
			l.rest()
		}
	}
}

// news prints a line for the operator.
func news(format string, args ...any) { stderr.say("pawl: " + fmt.Sprintf(format, args...) + "\n") }
