package sqlengine

import (
	"context"
	"errors"
	"fmt"

	"github.com/pawl-go/pawl/engine"
)

// Schema is the tables and routines of a mode in a server.
type Schema struct {
	Name    string // what messages call it
	Version int    // that this program knows

	// Find returns the version that is there. Find may refuse the server for
	// other reasons, with [engine.ErrUnsupported].
	Find func(context.Context) (version int, err error)
	// Missing reports whether err says that nothing is there.
	Missing func(err error) bool
	// Denied reports whether err says that this user may not do that.
	Denied func(err error) bool
	// Create creates missing parts, and replaces old ones.
	Create func(context.Context) error
	// Raced, when set, reports whether err says that another client has just created a part:
	// then Create is repeated.
	Raced func(err error) bool
}

// createTries is how often clients that begin together may disturb one another.
const createTries = 5

// Migrate makes sure that the schema is there, and of our version.
func (s Schema) Migrate(ctx context.Context) error {
	version, err := s.Find(ctx)
	if engine.CreatesNothing(ctx) {
		if s.Missing(err) {
			return fmt.Errorf("open: %w", engine.ErrNoStore)
		}
	} else if err == nil && version < s.Version || s.Missing(err) {
		err = s.Create(ctx)
		for try := 1; try < createTries && s.Raced != nil && s.Raced(err); try++ {
			err = s.Create(ctx)
		}
		if err == nil {
			version, err = s.Find(ctx)
		}
	}
	switch {
	case err == nil && version != s.Version:
		err = fmt.Errorf("%w: %s are of version %d, this program knows version %d", engine.ErrUnsupported, s.Name, version, s.Version)
	case s.Denied(err):
		err = fmt.Errorf("%s are missing or old, and this user may not create them. "+
			"Let a user that may do so run pawl store init: %w", s.Name, err)
	}
	if errors.Is(err, engine.ErrUnsupported) {
		return fmt.Errorf("open: %w", err)
	}
	return engine.Unavailable("open", err)
}
