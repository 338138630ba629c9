package pawl

import (
	"context"
	"crypto/rand"
)

type ownerKey struct{}

// WithOwner returns a context whose acquisitions belong to owner: claims of
// one owner on one name share a grant and its token, which is re-entry. Go has
// no thread identity, so it has to be said. Do and Lease.Context say it by
// themselves. The store checks it: an owner whose lock was lost waits like any
// other. One that wants more than it holds, to write what it reads or more permits,
// gets it at once if it is free and nobody waits, else [ErrNotAcquired]: it does not wait.
//
// Whoever uses the same owner shares its locks, in other processes too: make
// it unguessable, or take what [NewOwner] gives. It follows the rules of names.
func WithOwner(ctx context.Context, owner string) context.Context {
	return context.WithValue(ctx, ownerKey{}, owner)
}

// NewOwner returns an owner that nobody else has.
func NewOwner() string { return rand.Text() }

func ownerOf(ctx context.Context) string {
	owner, _ := ctx.Value(ownerKey{}).(string)
	return owner
}
