// Package uuids makes UUIDs of version 4 and 7 as generators of package id, by
// github.com/google/uuid. UUIDs need no store: uniqueness rests on random bits, 122 of them in
// version 4, and 62 beside the time in version 7.
//
//   - Version 4 has no order and tells nothing.
//   - Version 7 begins with the time in ms, so that an index grows at its end. UUIDs of one
//     process rise strictly, over all its goroutines, also when its clock steps back: its time
//     then counts on. Those of several processes are in the order of their clocks.
package uuids

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/pawl-go/pawl/id"
)

// V4 returns a generator of random UUIDs.
func V4() id.Generator[uuid.UUID] { return generator(uuid.NewRandom) }

// V7 returns a generator of UUIDs that begin with the time.
func V7() id.Generator[uuid.UUID] { return generator(uuid.NewV7) }

// generator makes a UUID. A generator fails only when the system has no random bits.
type generator func() (uuid.UUID, error)

func (g generator) Next(context.Context) (uuid.UUID, error) {
	u, err := g()
	if err != nil {
		return uuid.UUID{}, fmt.Errorf("make a UUID: %w", err)
	}
	return u, nil
}

func (g generator) NextN(ctx context.Context, dst []uuid.UUID) (n int, err error) {
	for i := range dst {
		if dst[i], err = g.Next(ctx); err != nil {
			return i, err
		}
	}
	return len(dst), nil
}
