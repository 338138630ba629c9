package fence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unicode"
	"unicode/utf8"
)

var (
	// ErrStale says that a token is older than the newest token that the
	// protected resource has seen: its sender no longer holds the lock. The
	// same token will never be accepted again.
	ErrStale = errors.New("stale fencing token")

	// ErrInvalid says that a token or the name of a resource is invalid: nothing
	// was compared.
	ErrInvalid = errors.New("invalid")
)

// Guard stands at a protected resource, remembers the newest token
// and refuses older tokens. All guards agree on this:
//
//   - The first token of a resource passes, whichever it is. So the first token
//     after the guard's memory was lost passes too, although it may be old.
//   - An equal token passes: it is the same holder, which writes again or repeats
//     a write whose reply was lost.
//   - Passing is remembered even if the write that follows fails.
//   - No clock is involved, but by package redisfence with Options.Keep, which has marks expire.
//   - Tokens of different locks cannot be compared, so one resource is protected by one lock,
//     in one store. Delete the marks when you move the lock to another store. Nor can tokens of
//     readers, or of holders of permits, which hold beside one another.
//   - A guard is only as good as its tokens. Where a store's tokens may repeat or go back, as
//     its capabilities say, a late holder may pass.
//
// A guard protects only if the check and the write are one atomic step at the
// resource. Check alone is not: between it and the write that follows, a newer
// holder may check and write, and then the older write lands last. Each guard
// says how its check and a write become one step.
type Guard interface {
	// Check lets the token pass if no newer token has passed for the resource,
	// and remembers it. Else Check returns an error that matches [ErrStale].
	// Names and tokens that [Validate] refuses are not looked up.
	Check(ctx context.Context, resource string, token Token) error
}

// Validate returns an error that matches [ErrInvalid] unless resource and token are valid. A
// resource is 1 to 512 bytes of UTF-8 without control characters, as every name in pawl.
// Validate is for authors of guards.
func Validate(resource string, token Token) error {
	if resource == "" || len(resource) > 512 || !utf8.ValidString(resource) || hasControl(resource) {
		return fmt.Errorf("%w name of a protected resource %.80q: it has to be 1 to 512 bytes of UTF-8 without control characters", ErrInvalid, resource)
	}
	return token.Validate()
}

func hasControl(s string) bool {
	for _, r := range s {
		if unicode.IsControl(r) {
			return true
		}
	}
	return false
}

// Stale returns the error for a refused token. Stale is for authors of
// guards.
func Stale(resource string, token Token) error {
	return fmt.Errorf("%w: %q has seen a newer token than %d", ErrStale, resource, token)
}

type tokenKey struct{}

// carried is a token in a context, and those outside of it.
type carried struct {
	lock  string
	token Token
	outer *carried
}

func carriedBy(ctx context.Context) *carried {
	c, _ := ctx.Value(tokenKey{}).(*carried)
	return c
}

// WithToken returns a context that carries the token of the lock of this name. Such a context is for code
// further down that writes to the protected resource, such as the transport of package
// httpfence. The context of a lease carries its token already, under its name. A context
// carries the tokens of any number of locks.
func WithToken(ctx context.Context, lock string, token Token) context.Context {
	return context.WithValue(ctx, tokenKey{}, &carried{lock, token, carriedBy(ctx)})
}

// FromContext returns the token that the innermost [WithToken] for the lock of this name
// put into ctx, if there is one.
func FromContext(ctx context.Context, lock string) (Token, bool) {
	for c := carriedBy(ctx); c != nil; c = c.outer {
		if c.lock == lock {
			return c.token, true
		}
	}
	return 0, false
}

// Locks returns the names of the locks whose tokens ctx carries, each once, the
// innermost first.
func Locks(ctx context.Context) (locks []string) {
	for c := carriedBy(ctx); c != nil; c = c.outer {
		if !slices.Contains(locks, c.lock) {
			locks = append(locks, c.lock)
		}
	}
	return locks
}
