// Package pawlslog writes pawl's events to a log. Losses and failures are warnings, and the restart
// grace of a store is one warning. The rest is for debugging, also that a TryLock found a lock
// taken.
package pawlslog

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

// New returns an observer for [pawl.Options] that writes to log. Losses, waits that failed, renewals that
// failed and releases that the store did not confirm are warnings. The rest is at the level debug: that a TryLock found a
// lock taken is an answer. A renewal that succeeded is not written. In a restart grace the
// first attempt that meets it is a warning, which says when the store grants again; the others
// are for debugging.
func New(log *slog.Logger) func(context.Context, pawl.Event) {
	var told grace
	return func(ctx context.Context, e pawl.Event) {
		level := slog.LevelDebug
		switch {
		case e.Kind == pawl.EventRenewed && e.Err == nil:
			return
		case errors.Is(e.Err, pawl.ErrGrace):
			if told.first(e.Err) {
				level = slog.LevelWarn
			}
		case e.Err != nil && !errors.Is(e.Err, engine.ErrBusy):
			level = slog.LevelWarn
		}
		if !log.Enabled(ctx, level) {
			return
		}
		var attrs []slog.Attr
		if e.Name != "" {
			attrs = append(attrs, slog.String("name", e.Name), slog.String("use", e.Use))
		}
		if e.Token != 0 {
			attrs = append(attrs, slog.Uint64("token", uint64(e.Token)))
		}
		if e.Took != 0 {
			attrs = append(attrs, slog.Duration("took", e.Took))
		}
		if e.Err != nil {
			attrs = append(attrs, slog.String("error", e.Err.Error()))
		}
		log.LogAttrs(ctx, level, "pawl "+e.Kind.String(), attrs...)
	}
}

// grace is the restart grace that was told last.
type grace struct {
	mu    sync.Mutex
	until time.Time
}

// first reports whether this is a grace that was not told yet.
func (g *grace) first(err error) bool {
	var is *engine.GraceError
	errors.As(err, &is)
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if now.Before(g.until) {
		return false
	}
	if g.until = now; is != nil {
		g.until = now.Add(is.Grace.Left)
	}
	return true
}
