package httpidem

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idem"
)

// Limits and defaults of [Options].
const (
	DefaultMaxBody     = 1 << 20
	MaxMaxBody         = 64 << 20
	DefaultMaxResponse = 256 << 10
	MaxMaxResponse     = idem.MaxResult - 32<<10 // the rest is for headers
	MaxIdentity        = 200
	DefaultRetryAfter  = time.Second
)

// Options are the settings of [New]. The zero value of each field means its default, but Identity has none.
type Options struct {
	// Identity names the caller, such as the number of its account: 1 to [MaxIdentity] bytes of UTF-8 without control
	// characters. The name has to be authenticated. Without it, a client that guesses a key reads the response of another
	// client. So New refuses Options without Identity. A server whose callers are all the same returns a constant.
	// An error is replied as 403, and its text goes to Report only.
	Identity func(*http.Request) (string, error)

	// Scope separates the keys of several middlewares on one store: 1 to 32 bytes, and no slash. Default "http".
	Scope string

	// Methods are the methods that need a key. Requests of other methods go to the handler as they are. Default POST and
	// PATCH. GET, HEAD, OPTIONS, TRACE and CONNECT are refused.
	Methods []string

	// Optional lets requests without a key go to the handler as they are. Default: they are refused.
	Optional bool

	// Unquoted allows keys without quotes as well, as many clients send them. A quoted key and the same key without
	// quotes are one key.
	Unquoted bool

	// MaxKey is the largest length of a key in bytes: 1 to [idem.MaxPart], which is the default.
	MaxKey int

	// MaxBody is the largest body of a request in bytes: 1 to [MaxMaxBody]. Default [DefaultMaxBody]. The middleware has
	// the whole body in memory, because the fingerprint needs it before the handler runs.
	MaxBody int64

	// MaxResponse is the largest body of a response that is kept, in bytes: 1 to [MaxMaxResponse]. Default
	// [DefaultMaxResponse]. A larger response goes to the client, and a repeat is refused with 410.
	MaxResponse int

	// Headers are kept and replayed besides [KeptHeaders]. A
	// header that is not among them is not in a replay. Headers of the connection are refused.
	Headers []string

	// Keep says whether a response with this status is final, so that a repeat gets it. After another one, a repeat runs
	// the handler again. Default: all but 408, 425, 429 and those from 500 on.
	Keep func(status int) bool

	// LetThrough lets requests go to the handler while the store does not answer. That voids the guarantee: the handler
	// may run twice for one key, also beside itself. Default: such requests are refused with 503.
	LetThrough bool

	// RetryAfter is what 409 and 503 tell the client, in whole seconds: 1 s to 1 h. Default [DefaultRetryAfter].
	RetryAfter time.Duration

	// Documentation is the URL of the page that tells clients about the keys: the type of problems, and their Link.
	Documentation string

	// Report is told errors that the client is not told: of the store, and of Identity. Report must be safe for concurrent
	// use. Default: nothing is told.
	Report func(*http.Request, error)
}

// KeptHeaders returns the headers of a response that are always kept.
func KeptHeaders() []string {
	return []string{"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Location",
		"Content-Type", "Etag", "Last-Modified", "Link", "Location", "Vary", "X-Content-Type-Options"}
}

// ofConnection are headers that tell about one connection or one moment, and not about a response.
var ofConnection = []string{"Connection", "Content-Length", "Date", "Keep-Alive", "Proxy-Authenticate", "Proxy-Connection",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade", ReplayedHeader}

var safeMethods = []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodConnect}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{pawl.ErrInvalid}, args...)...)
}

func orDefault[T comparable](field *T, value T) {
	if *field == *new(T) {
		*field = value
	}
}

// withDefaults returns the options with their defaults, or the first mistake in them.
func (o Options) withDefaults() (Options, error) {
	orDefault(&o.Scope, "http")
	orDefault(&o.MaxKey, idem.MaxPart)
	orDefault(&o.MaxBody, DefaultMaxBody)
	orDefault(&o.MaxResponse, DefaultMaxResponse)
	orDefault(&o.RetryAfter, DefaultRetryAfter)
	if o.Methods == nil {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if o.Keep == nil {
		o.Keep = final
	}
	if o.Report == nil {
		o.Report = func(*http.Request, error) {}
	}
	headers := KeptHeaders()
	for _, h := range o.Headers {
		headers = append(headers, http.CanonicalHeaderKey(h))
	}
	slices.Sort(headers)
	o.Headers = slices.Compact(headers)
	return o, o.validate()
}

func (o Options) validate() error {
	switch {
	case o.Identity == nil:
		return invalid("Options.Identity is nil: a key is one of a caller, and this function names the caller")
	case len(o.Scope) > 32 || strings.Contains(o.Scope, "/"):
		return invalid("Options.Scope is %.100q: 1 to 32 bytes without a slash are allowed", o.Scope)
	case o.MaxKey < 1 || o.MaxKey > idem.MaxPart:
		return invalid("Options.MaxKey is %d: 1 to %d are allowed", o.MaxKey, idem.MaxPart)
	case o.MaxBody < 1 || o.MaxBody > MaxMaxBody:
		return invalid("Options.MaxBody is %d: 1 to %d are allowed", o.MaxBody, MaxMaxBody)
	case o.MaxResponse < 1 || o.MaxResponse > MaxMaxResponse:
		return invalid("Options.MaxResponse is %d: 1 to %d are allowed", o.MaxResponse, MaxMaxResponse)
	case o.RetryAfter < time.Second || o.RetryAfter > time.Hour:
		return invalid("Options.RetryAfter is %v: 1s to 1h are allowed", o.RetryAfter)
	case strings.ContainsAny(o.Documentation, "<>\r\n"):
		return invalid("Options.Documentation is %q: a URL is allowed", o.Documentation)
	}
	for _, m := range o.Methods {
		if m == "" || slices.Contains(safeMethods, strings.ToUpper(m)) {
			return invalid("Options.Methods has %q: methods that change nothing need no key", m)
		}
	}
	for _, h := range o.Headers {
		if slices.Contains(ofConnection, h) || strings.ContainsAny(h, ": \r\n") || h == "" {
			return invalid("Options.Headers has %q, which is no header of a response that can be kept", h)
		}
	}
	return idem.Key{Scope: o.Scope, ID: "-"}.Validate()
}

// final is the default of Options.Keep: statuses that do not ask the client to try again.
func final(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status < http.StatusInternalServerError
}
