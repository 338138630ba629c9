package dtx

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"

	"github.com/pawl-go/pawl"
)

// room keeps a connection of a limited pool from transactions. Else transactions that wait for the rows of a branch in doubt, or
// for a decision, could hold every connection. Then recovery could not finish that branch, and no decision would have a connection.
type room struct {
	db       *sql.DB
	entering chan struct{} // of one place: a transaction takes all its places at once
	places   chan struct{}
}

// makeRooms makes the rooms of the pools that are limited, in the order of the names of their resources.
func (c *Coordinator) makeRooms() error {
	for _, name := range slices.Sorted(maps.Keys(c.resources)) {
		r := c.resources[name]
		most := r.db.Stats().MaxOpenConnections
		if most == 0 || r.readOnly && r.db != c.log.db {
			continue
		}
		if most == 1 && r.log == nil {
			return fmt.Errorf("dtx: %w: the pool of the resource %s has 1 connection: at least 2 are needed, because recovery needs a connection beside a transaction",
				pawl.ErrInvalid, r.name)
		}
		if !slices.ContainsFunc(c.rooms, func(known room) bool { return known.db == r.db }) {
			c.rooms = append(c.rooms, room{r.db, make(chan struct{}, 1), make(chan struct{}, max(most-1, 1))})
		}
	}
	return nil
}

// takes is how many connections of the pool a transaction takes.
func (m room) takes(resources []*Resource) (n int) {
	for _, r := range resources {
		if r.db == m.db {
			n++
		}
	}
	return n
}

// fit returns an error if a pool will never have the connections that a transaction takes.
func (c *Coordinator) fit(resources []*Resource) error {
	for _, m := range c.rooms {
		if n := m.takes(resources); n > cap(m.places) {
			return fmt.Errorf("dtx: %w: %d resources have one pool of %d connections: at most %d of them are allowed in a transaction",
				pawl.ErrInvalid, n, cap(m.places)+1, cap(m.places))
		}
	}
	return nil
}

// enter waits until the pool has n connections for a transaction. enter returns false if ctx ends before.
func (m room) enter(ctx context.Context, n int) bool {
	if n == 0 {
		return true
	}
	select {
	case m.entering <- struct{}{}:
		defer func() { <-m.entering }()
	case <-ctx.Done():
		return false
	}
	for taken := range n {
		select {
		case m.places <- struct{}{}:
		case <-ctx.Done():
			m.leave(taken)
			return false
		}
	}
	return true
}

func (m room) leave(n int) {
	for range n {
		<-m.places
	}
}

// enterRooms waits until all pools have room for a transaction, or ctx ends.
func (c *Coordinator) enterRooms(ctx context.Context, resources []*Resource) (leave func(), err error) {
	entered := 0
	leave = func() {
		for _, m := range c.rooms[:entered] {
			m.leave(m.takes(resources))
		}
	}
	for _, m := range c.rooms {
		if !m.enter(ctx, m.takes(resources)) {
			leave()
			return nil, context.Cause(ctx)
		}
		entered++
	}
	return leave, nil
}
