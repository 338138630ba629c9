package pawlslog_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/observe"
	"github.com/pawl-go/pawl/observe/pawlslog"
)

func TestLog(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "took" || a.Key == "token" {
			return slog.Attr{}
		}
		return a
	}}))
	var count int
	c, err := pawl.New(t.Context(), memengine.New(), &pawl.Options{
		Observe: observe.All(pawlslog.New(log), func(context.Context, pawl.Event) { count++ }),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	lease, err := c.Mutex("m").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Mutex("m").TryLock(t.Context()); err == nil {
		t.Fatal("held twice")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Mutex("m").Lock(ended); err == nil {
		t.Fatal("held twice")
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`level=DEBUG msg="pawl attempt" name=m use=lock`,
		`level=DEBUG msg="pawl granted" name=m use=lock`,
		`level=DEBUG msg="pawl attempt" name=m use=lock`,
		`level=DEBUG msg="pawl refused" name=m use=lock error="lock \"m\": not acquired: enter: busy"`,
		`level=DEBUG msg="pawl attempt" name=m use=lock`,
		`level=WARN msg="pawl refused" name=m use=lock error="lock \"m\": not acquired: context canceled"`,
		`level=DEBUG msg="pawl released" name=m use=lock`,
	}
	if is := strings.Split(strings.TrimSpace(text.String()), "\n"); strings.Join(is, "\n") != strings.Join(want, "\n") {
		t.Errorf("logged\n%s\nwant\n%s", strings.Join(is, "\n"), strings.Join(want, "\n"))
	}
	if count != len(want) {
		t.Errorf("%d events, want %d", count, len(want))
	}
}

// TestGraceIsToldOnce: however many wait, the restart grace is one warning; the next grace is another.
func TestGraceIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		observe := pawlslog.New(slog.New(slog.NewTextHandler(&text, nil)))
		grace := func(left time.Duration) error {
			return fmt.Errorf("%w: %w", pawl.ErrGrace, &engine.GraceError{Grace: engine.Grace{Left: left}})
		}
		for range 2 {
			text.Reset()
			for i := range 10 {
				left := time.Duration(10-i) * time.Second
				observe(t.Context(), pawl.Event{Kind: pawl.EventGrace, Name: "m", Use: "lock", Took: left, Err: grace(left)})
				observe(t.Context(), pawl.Event{Kind: pawl.EventRefused, Name: "n", Use: "lock", Err: fmt.Errorf("%w: %w", pawl.ErrNotAcquired, grace(left))})
				<-time.After(time.Second)
			}
			if is := text.String(); strings.Count(is, "WARN") != 1 || !strings.Contains(is, "pawl grace") || !strings.Contains(is, "took=10s") {
				t.Errorf("logged %q", is)
			}
		}
	})
}
