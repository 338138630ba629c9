// Package observe is for observers of pawl's events; its folders turn them into logs
// and into metrics and traces.
package observe

import (
	"context"

	"github.com/pawl-go/pawl"
)

// All returns an observer that tells all of these, in this order.
func All(observers ...func(context.Context, pawl.Event)) func(context.Context, pawl.Event) {
	return func(ctx context.Context, e pawl.Event) {
		for _, observe := range observers {
			observe(ctx, e)
		}
	}
}
