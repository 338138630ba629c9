// Package slog writes pawl's events to a log: what is lost or fails as warnings,
// the rest, also that a TryLock found a lock taken, for debugging.
package slog

import (
	"context"
	"errors"
	"log/slog"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

// New returns an observer for [pawl.Options] that writes to log. Losses, waits that
// failed and renewals that failed are warnings; the rest is at the level debug: that
// a TryLock found a lock taken is an answer. A renewal that succeeded is not written.
func New(log *slog.Logger) func(context.Context, pawl.Event) {
	return func(ctx context.Context, e pawl.Event) {
		level := slog.LevelDebug
		switch {
		case e.Kind == pawl.EventRenewed && e.Err == nil:
			return
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
