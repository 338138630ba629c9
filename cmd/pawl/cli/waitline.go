//go:build unix

package cli

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/pawl-go/pawl"
)

// waitLine shows the reason to a user at a terminal while pawl waits.
type waitLine struct {
	client      *pawl.Client
	name, shown string // of the lock in the store, and as the user says it
	own         string // the label of this process's claim
	width       int
	cancel      context.CancelFunc
	done        chan struct{}
}

// eraseWithin is how long a command that has its lock waits for the terminal to remove the line.
const eraseWithin = 50 * time.Millisecond

// startWaitLine shows nothing unless standard error is a terminal.
func startWaitLine(client *pawl.Client, name, shown, own string) *waitLine {
	ctx, cancel := context.WithCancel(context.Background())
	w := &waitLine{client: client, name: name, shown: shown, own: own, cancel: cancel, done: make(chan struct{})}
	var terminal bool
	if w.width, terminal = terminalWidth(os.Stderr); !terminal {
		close(w.done)
		return w
	}
	go w.run(ctx)
	return w
}

// stop removes the line.
func (w *waitLine) stop() {
	w.cancel()
	<-w.done
}

func (w *waitLine) run(ctx context.Context) {
	defer close(w.done)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for shown := false; ; shown = true {
		pause := tick.C
		if !shown { // most waits end before
			pause = time.After(300 * time.Millisecond)
		}
		select {
		case <-pause:
			if text := w.fit(w.text(ctx)); ctx.Err() == nil && stderr.idle() { // not while Ctrl-S holds the terminal
				stderr.say("\r\x1b[K" + text)
			}
		case <-ctx.Done():
			if shown {
				stderr.say("\r\x1b[K")
				stderr.flush(eraseWithin)
			}
			return
		}
	}
}

func (w *waitLine) text(ctx context.Context) string {
	text := fmt.Sprintf("pawl: waiting for %q", w.shown)
	r, err := w.client.Show(ctx, w.name)
	switch {
	case err != nil:
		return text + ": the store does not answer"
	case r.Grace.On():
		text += ": " + graceText(r)
	case len(r.Holders) > 0:
		text += ": held by " + heldBy(r)
	}
	for i, p := range r.Waiters {
		if p.Label == w.own {
			text += fmt.Sprintf("; place %d of %d", i+1, len(r.Waiters))
		}
	}
	if !r.Grace.On() {
		text += sessionEnd(r)
	}
	return text
}

// firstWide is the first character that has two columns. Many later characters have one column, so a line may end early.
const firstWide = '\u1100'

// fit cuts the line, because a longer line could not be removed.
func (w *waitLine) fit(text string) string {
	columns := 0
	for i, r := range text {
		if columns++; r >= firstWide {
			columns++
		}
		if w.width > 1 && columns >= w.width {
			return text[:i]
		}
	}
	return text
}
