//go:build unix

package cli

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// waitLine tells who waits at a terminal what for.
type waitLine struct {
	eng       engine.Engine
	name, own string // own is the label of our claim
	width     int
	cancel    context.CancelFunc
	done      chan struct{}
}

// startWaitLine shows nothing unless standard error is a terminal.
func startWaitLine(eng engine.Engine, name, own string) *waitLine {
	ctx, cancel := context.WithCancel(context.Background())
	w := &waitLine{eng: eng, name: name, own: own, cancel: cancel, done: make(chan struct{})}
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
		if !shown { // most waits are over before
			pause = time.After(300 * time.Millisecond)
		}
		select {
		case <-pause:
			fmt.Fprint(os.Stderr, "\r\x1b[K", w.fit(w.text(ctx)))
		case <-ctx.Done():
			if shown {
				fmt.Fprint(os.Stderr, "\r\x1b[K")
			}
			return
		}
	}
}

func (w *waitLine) text(ctx context.Context) string {
	text := fmt.Sprintf("pawl: waiting for %q", w.name)
	r, err := w.eng.Show(ctx, w.name)
	if err != nil {
		return text + ": the store does not answer"
	}
	granted, waiting := split(r)
	if len(granted) > 0 {
		text += ": held by " + printable(granted[0].Label)
		if more := len(granted) - 1; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		if granted[0].Age >= 0 {
			text += " since " + time.Now().Add(-granted[0].Age).Format(time.TimeOnly)
		}
	}
	for i, c := range waiting {
		if c.Label == w.own {
			text += fmt.Sprintf("; place %d of %d", i+1, len(waiting))
		}
	}
	return text
}

// fit cuts the line, for a longer one could not be removed.
func (w *waitLine) fit(text string) string {
	runes := []rune(text)
	if w.width > 1 && len(runes) >= w.width {
		return string(runes[:w.width-1])
	}
	return text
}
