package threephase

import (
	"context"
	"fmt"
	"strings"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
)

// Handler does the work of an agent. The methods are called concurrently for different transactions, and one after the other for one
// transaction. Each ctx ends after [Options].Timeout, or when the agent closes.
type Handler interface {
	// Prepare does the work of the payload, so that it can still be committed or aborted, also after a crash. Nil is
	// a vote that binds. An error aborts the transaction. An agent calls Prepare once at most for an ID.
	Prepare(ctx context.Context, id ID, payload []byte) error
	// Commit makes the prepared work last. Commit is called again until it returns nil, and may be called after that.
	Commit(ctx context.Context, id ID) error
	// Abort undoes the work. Abort is called again until it returns nil, also for work that was never prepared.
	Abort(ctx context.Context, id ID) error
	// Prepared returns the IDs of the work that is prepared. The list has all work whose Prepare has returned nil, until Commit or Abort returns nil. If
	// that is not known, Prepared returns an error, and never a shorter list.
	Prepared(ctx context.Context) ([]ID, error)
}

// Database returns the handler that does its work in a branch of a database. Do gets the payload and the transaction. An error of do aborts.
// The name of the resource has at most 16 bytes. No two agents of a server of databases have resources of one name.
func Database(r *dtx.Resource, do func(ctx context.Context, db dialect.DB, id ID, payload []byte) error) (Handler, error) {
	switch {
	case r == nil || do == nil:
		return nil, fmt.Errorf("threephase: %w: the resource or the function is nil", pawl.ErrInvalid)
	case len(r.Name()) > 16:
		return nil, fmt.Errorf("threephase: %w: the name of the resource is %.40q: 1 to 16 bytes are allowed", pawl.ErrInvalid, r.Name())
	}
	return &database{r, do}, nil
}

type database struct {
	*dtx.Resource
	do func(ctx context.Context, db dialect.DB, id ID, payload []byte) error
}

// checker is an optional part of a Handler. New calls Check.
type checker interface {
	Check(ctx context.Context) error
}

func (d *database) prefix() string { return "pawl3-" + d.Name() + "-" }

// Prepare implements [Handler].
func (d *database) Prepare(ctx context.Context, id ID, payload []byte) error {
	return d.Resource.Prepare(ctx, d.prefix()+id.String(), func(ctx context.Context, db dialect.DB) error {
		return d.do(ctx, db, id, payload)
	})
}

// Commit implements [Handler].
func (d *database) Commit(ctx context.Context, id ID) error {
	return d.Finish(ctx, d.prefix()+id.String(), true)
}

// Abort implements [Handler].
func (d *database) Abort(ctx context.Context, id ID) error {
	return d.Finish(ctx, d.prefix()+id.String(), false)
}

// Prepared implements [Handler].
func (d *database) Prepared(ctx context.Context) (all []ID, err error) {
	names, err := d.Resource.Prepared(ctx, d.prefix())
	for _, name := range names {
		if id, bad := ParseID(strings.TrimPrefix(name, d.prefix())); bad == nil {
			all = append(all, id)
		}
	}
	return all, err
}
