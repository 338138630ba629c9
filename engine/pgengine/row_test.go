package pgengine_test

import (
	"strings"
	"testing"

	"github.com/pawl-go/pawl/engine/pgengine"
	"github.com/pawl-go/pawl/internal/leasetest"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestRowLongSchema: what the server keeps by a name that it cuts is told apart.
func TestRowLongSchema(t *testing.T) {
	p := pool(t, testservers.SharedPostgres(t).Addr, "postgres", "long")
	for _, last := range []string{"a", "b"} {
		e, err := pgengine.NewRow(t.Context(), p, &pgengine.RowOptions{Schema: strings.Repeat("x", 62) + last})
		s := sessiontest.Open(t, leasetest.Opened(t, e, err), leasetest.TTL)
		sessiontest.Hold(t, s, sessiontest.Whole(t, sessiontest.Fair))
	}
}
