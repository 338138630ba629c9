package pawl

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pawl-go/pawl/engine"
)

// ownKinds are the kinds of the names of this package.
var ownKinds = []string{"value", "update", "permits", "broken", "latch", "barrier", "election", "slots"}

// MaxKind is the longest kind of a [Scope] in bytes.
const MaxKind = 64

// Scope has the names of a service that is built on this package. The locks and values of a scope
// are separate from all others, also where names are equal. Package work is such a service. A Scope
// is a description, as [Mutex] is.
type Scope struct {
	client *Client
	kind   string
	err    error
}

// Scope returns the names of this kind. A kind has 1 to [MaxKind] bytes as in names, without a
// slash. The kind must not be a kind of this package, such as "value" and "election". Otherwise the first
// use of a name is an [ErrInvalid]. Locks and values of the kind are stored under names that begin
// with "pawl:KIND/". So a service that changes its kind loses its stored values.
func (c *Client) Scope(kind string) *Scope {
	s := &Scope{client: c, kind: kind, err: checkText("kind", kind)}
	if s.err == nil && (len(kind) > MaxKind || strings.Contains(kind, "/") || slices.Contains(ownKinds, kind)) {
		s.err = invalid("kind is %q: 1 to %d bytes without a slash are allowed, and none of %q", kind, MaxKind, ownKinds)
	}
	return s
}

// Mutex returns the lock of this name in the scope. The lock takes no owner: it is never
// re-entered. Here names may be longer than [MaxName]. The lock, and its leases, have the name
// under which the store keeps it.
func (s *Scope) Mutex(name string) *Mutex {
	m := &Mutex{newLock(s.client, scopedName(s.kind, name), engine.KindLock, engine.LockCapacity, engine.LockCapacity)}
	m.alone = true
	if err := s.check(name); err != nil {
		m.err = err
	}
	return m
}

// Value returns the value of this name in the scope. Here names may be longer than [MaxName].
func (s *Scope) Value(name string) *Value {
	v := &Value{client: s.client, name: name, key: scopedName(s.kind, name), err: s.check(name)}
	if v.err == nil {
		v.err = s.client.caps.RefuseFeature(engine.FeatureValues)
	}
	return v
}

// Values yields the names of the values in the scope that begin with prefix, in no order, each
// once. A name that comes or goes meanwhile may be missing. A name of which the store has only a
// cut form, because it was too long, is yielded so. Values ends after the first error.
func (s *Scope) Values(ctx context.Context, prefix string) iter.Seq2[string, error] {
	head := "pawl:" + s.kind + "/"
	return func(yield func(string, error) bool) {
		err := s.err
		if err == nil {
			err = s.client.caps.RefuseFeature(engine.FeatureValues)
		}
		if err == nil {
			err = s.client.names(ctx, s.client.values.ListValues, head+prefix, func(name string) error {
				if !yield(strings.TrimPrefix(name, head), nil) {
					return errEnough
				}
				return nil
			})
		}
		if err != nil && !errors.Is(err, errEnough) {
			yield("", fmt.Errorf("list values %q: %w", head+prefix, err))
		}
	}
}

// errEnough ends a list that its caller has left.
var errEnough = errors.New("enough")

func (s *Scope) check(name string) error {
	if s.err != nil {
		return s.err
	}
	return checkPlain("name", name)
}

// scopedName is the name in the store of a lock or value of a primitive. A name that is too long is
// cut, and a hash tells it apart.
func scopedName(kind, name string) string {
	scoped := "pawl:" + kind + "/" + name
	if len(scoped) <= MaxName {
		return scoped
	}
	cut := scoped[:MaxName-66]
	for !utf8.ValidString(cut) {
		cut = cut[:len(cut)-1]
	}
	return fmt.Sprintf("%s~%x", cut, sha256.Sum256([]byte(name)))
}
