package pgengine_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/pgengine"
	"github.com/pawl-go/pawl/internal/leasetest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestManyCreate: many clients find no tables at once. Only one of them makes the tables, and the
// others touch none that are in use by then.
func TestManyCreate(t *testing.T) {
	addr := testservers.SharedPostgres(t).Addr
	for round := range 5 {
		for name, made := range map[string]func() (engine.Engine, error){
			"lease": func() (engine.Engine, error) {
				return pgengine.New(t.Context(), pool(t, addr, "postgres", "create"), &pgengine.Options{Schema: fmt.Sprint("create", round)})
			},
			"row": func() (engine.Engine, error) {
				return pgengine.NewRow(t.Context(), pool(t, addr, "postgres", "create"), &pgengine.RowOptions{Schema: fmt.Sprint("create_row", round)})
			},
		} {
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() {
					if err := lockSome(t, made, i); err != nil {
						t.Errorf("%s, round %d: %v", name, round, err)
					}
				})
			}
			all.Wait()
		}
	}
}

// lockSome opens an engine and takes locks at once.
func lockSome(t *testing.T, made func() (engine.Engine, error), i int) error {
	e, err := made()
	if err != nil {
		return err
	}
	defer e.Close() //nolint:errcheck // not the point
	s, err := e.Open(t.Context(), engine.SessionOptions{TTL: leasetest.TTL})
	if err != nil {
		return err
	}
	for n := range 10 {
		c := claim(fmt.Sprint("create", i, n), fmt.Sprint("create", i, ".", n))
		if _, err := s.Enter(t.Context(), c, false); err != nil {
			return err
		}
		if err := s.Leave(t.Context(), c.Resource, c.ID); err != nil {
			return err
		}
	}
	return s.Close(t.Context())
}
