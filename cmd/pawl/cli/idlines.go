package cli

import (
	"context"
	"strconv"
	"sync"

	"github.com/google/uuid"

	"github.com/pawl-go/pawl/id"
)

// lines makes n IDs and appends them to text, each with the end of its line. got is how many it
// appended: less than n only with an error. lines is safe for concurrent use.
type lines func(ctx context.Context, text []byte, n int) (_ []byte, got int, err error)

// linesOf returns the lines of a generator.
func linesOf[T any](from id.Generator[T], print func([]byte, T) []byte) lines {
	pool := sync.Pool{New: func() any { return new([]T) }}
	return func(ctx context.Context, text []byte, n int) ([]byte, int, error) {
		ids := pool.Get().(*[]T)
		defer pool.Put(ids)
		if cap(*ids) < n {
			*ids = make([]T, n)
		}
		got, err := from.NextN(ctx, (*ids)[:n])
		for _, one := range (*ids)[:got] {
			text = append(print(text, one), '\n')
		}
		return text, got, err
	}
}

func numberLines(from id.Generator[int64]) lines {
	return linesOf(from, func(text []byte, n int64) []byte { return strconv.AppendInt(text, n, 10) })
}

func uuidLines(from id.Generator[uuid.UUID]) lines {
	return linesOf(from, func(text []byte, u uuid.UUID) []byte { return append(text, u.String()...) })
}

func textLines(from id.Generator[string]) lines {
	return linesOf(from, func(text []byte, one string) []byte { return append(text, one...) })
}
