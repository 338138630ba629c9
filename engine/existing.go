package engine

import (
	"context"
	"errors"
)

// ErrNoStore says that nobody has used the store yet, and that the caller wanted nothing to be
// created there.
var ErrNoStore = errors.New("no store yet: nobody has used it")

type existing struct{}

// Existing returns a context for making an engine whose user only reads. A store that does not
// exist is not created: the engine fails with [ErrNoStore].
func Existing(ctx context.Context) context.Context { return context.WithValue(ctx, existing{}, true) }

// CreatesNothing reports whether ctx comes from [Existing].
func CreatesNothing(ctx context.Context) bool { return ctx.Value(existing{}) != nil }
