package open

import (
	"context"
	"fmt"
	"net/url"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/engine/sqliteengine"
)

// openMemory makes a new, empty store each time.
func openMemory(_ context.Context, u *url.URL) (engine.Engine, error) {
	if u.Opaque+u.Host+u.Path != "" || u.User != nil {
		return nil, wrong("nothing may follow the colon")
	}
	return memengine.New(), nil
}

func openSQLite(ctx context.Context, u *url.URL) (engine.Engine, error) {
	path, err := sqlitePath(u)
	if err != nil {
		return nil, err
	}
	eng, err := sqliteengine.New(ctx, path, nil)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, engine.Unavailable("sqlite "+path, context.Cause(ctx))
	case err != nil:
		return nil, fmt.Errorf("sqlite %s: %w", path, err)
	}
	return eng, nil
}

func sqlitePath(u *url.URL) (string, error) {
	path := u.Path
	if u.Opaque != "" {
		unescaped, err := url.PathUnescape(u.Opaque)
		if err != nil {
			return "", wrong("its path cannot be read: %v", err)
		}
		path = unescaped
	}
	switch {
	case u.Host != "" || u.User != nil:
		return "", wrong("the path begins right after the colon, or it is absolute after ://")
	case path == "":
		return "", wrong("the path is missing")
	}
	return path, nil
}
