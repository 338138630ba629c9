// Package httpheader checks headers for brokers that carry them as HTTP does. NATS does so too.
package httpheader

import (
	"fmt"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/pawl-go/pawl/outbox"
)

// Check refuses a header that a client library would drop, trim or change without a word. The error matches
// [outbox.ErrRefused].
func Check(name, value string) error {
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return fmt.Errorf("%w: the name of header %q has other characters than letters, digits and hyphens", outbox.ErrRefused, name)
	case !httpguts.ValidHeaderFieldValue(value) || strings.TrimSpace(value) != value:
		return fmt.Errorf("%w: the value of header %q has control characters, or space around it", outbox.ErrRefused, name)
	}
	return nil
}
