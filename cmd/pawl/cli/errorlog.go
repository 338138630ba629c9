package cli

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// errorLog tells an operator the errors of a service, and no flood of them. errorLog is safe for concurrent use.
type errorLog struct {
	mu      sync.Mutex
	began   time.Time       // when the first of said was printed
	said    map[string]bool // reasons that are not printed again in a minute
	since   time.Time       // when the first error of this while was printed
	printed int             // errors since
	unsaid  int             // errors that were not printed
}

const (
	logWhile  = 10 * time.Second
	mostLogs  = 5           // errors that are printed in a while
	sameWhile = time.Minute // the time in which a reason is printed once
)

// failed prints an error, unless there were many, or the same a moment ago.
func (l *errorLog) failed(err error) { l.failedBy(err.Error(), err) }

// failedBy does what failed does for an error whose text is new each time, though its reason is not. failedBy reports whether the
// error was printed.
func (l *errorLog) failedBy(reason string, err error) bool {
	tells := l.tells(reason, time.Now())
	if tells {
		complain(err)
	}
	return tells
}

func (l *errorLog) tells(reason string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.said == nil || now.Sub(l.began) >= sameWhile {
		l.began, l.said = now, make(map[string]bool)
	}
	if now.Sub(l.since) >= logWhile {
		l.since, l.printed = now, 0
	}
	if l.said[reason] || l.printed == mostLogs {
		l.unsaid++
		return false
	}
	l.said[reason] = true
	l.printed++
	return true
}

// rest tells how many errors were not printed since the last rest.
func (l *errorLog) rest() {
	l.mu.Lock()
	n := l.unsaid
	l.unsaid = 0
	l.mu.Unlock()
	if n > 0 {
		news("%d further errors", n)
	}
}

// watch tells them now and then, until ctx ends.
func (l *errorLog) watch(ctx context.Context) error {
	tick := time.NewTicker(sameWhile)
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
