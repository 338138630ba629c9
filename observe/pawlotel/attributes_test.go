package pawlotel_test

import (
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
)

// attributes prints as a sorted list.
type attributes struct{ all []attribute.KeyValue }

func (a attributes) String() string {
	var words []string
	for _, kv := range a.all {
		words = append(words, string(kv.Key)+"="+kv.Value.AsString())
	}
	slices.Sort(words)
	return "[" + strings.Join(words, " ") + "]"
}
