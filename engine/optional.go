package engine

import (
	"context"
	"iter"
)

// Values is the part of an engine whose store keeps versioned values. An engine
// implements Values exactly where its [Caps] do not lack [FeatureValues].
type Values interface {
	// Get reads a versioned value. Version 0: there is none.
	Get(ctx context.Context, key string) (Value, error)

	// Put writes data if the value is still at version, and returns the new version. Version 0
	// means that there is no value. Nil data deletes the value. Put fails with ErrConflict when the
	// version is another. Versions of one key only grow, also across deletion. A Put whose reply
	// was lost has an unknown outcome.
	Put(ctx context.Context, key string, data []byte, version uint64) (uint64, error)

	// Watch returns the value as soon as its version differs from version.
	Watch(ctx context.Context, key string, version uint64) (Value, error)

	// ListValues yields the keys that have a value and start with prefix, in no order, each
	// once. A key that comes or goes meanwhile may be missing. Empty keys have the meaning that empty names have in [Engine.List].
	ListValues(ctx context.Context, prefix string) iter.Seq2[string, error]
}

// Resizer is the part of an engine whose store can give a semaphore another size. An engine
// implements Resizer exactly where its [Caps] lack neither [FeatureResize] nor [FeatureSemaphore].
type Resizer interface {
	// Resize gives a semaphore that is in use another capacity, 1 or more, and hands added permits
	// to waiters, in order. Nobody is evicted: the semaphore shrinks as holders leave. A waiting
	// claim that weighs more than the new capacity is let in alone, at its turn. From then on Enter
	// accepts only claims of the new capacity.
	//
	// Resize fails with ErrGone when there is no holder and no waiter, because then there is
	// nothing to change. Resize fails with ErrMismatch when the resource is no semaphore.
	Resize(ctx context.Context, name string, capacity int64) error
}

// Like returns an engine that wraps inner, with the optional parts of inner and no others. A part
// is [Values] or [Resizer]. The methods are those of outer where outer has them, else those of
// inner.
func Like(inner, outer Engine) Engine {
	v, hasValues := inner.(Values)
	if own, ok := outer.(Values); ok {
		v = own
	}
	r, resizes := inner.(Resizer)
	if own, ok := outer.(Resizer); ok {
		r = own
	}
	switch {
	case hasValues && resizes:
		return &struct {
			Engine
			Values
			Resizer
		}{outer, v, r}
	case hasValues:
		return &struct {
			Engine
			Values
		}{outer, v}
	case resizes:
		return &struct {
			Engine
			Resizer
		}{outer, r}
	}
	return &struct{ Engine }{outer}
}
