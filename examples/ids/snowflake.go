package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/snowflake"
)

// plain is a snowflake as textbooks have it: 41 bits of time, 10 of a worker, 12 of a sequence
// number. Such a generator refuses a clock that steps back while it runs. Nothing is left of its last time after a restart.
type plain struct {
	clock    func() time.Time
	last     int64 // ms since the epoch
	sequence int64
}

var epoch = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

func (p *plain) next() (int64, error) {
	now := p.clock().Sub(epoch).Milliseconds()
	switch {
	case now < p.last:
		return 0, errors.New("the clock stepped back")
	case now == p.last:
		p.sequence++
	default:
		p.last, p.sequence = now, 0
	}
	if p.sequence >= 1<<12 {
		return 0, errors.New("this millisecond is used up")
	}
	const worker = 0
	return now<<22 | worker<<12 | p.sequence, nil
}

const perLife = 1000 // IDs between two restarts

// clockStepsBack lets both kinds of snowflake live twice. At the second start the clock tells the same time
// as at the first.
func clockStepsBack(ctx context.Context, dir string, out io.Writer) error {
	fmt.Fprintln(out, "SNOWFLAKE: the process restarts, and meanwhile the clock is set back by 1 s")
	start := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	naive, ours := &result{maker: "plain snowflake"}, &result{maker: "pawl"}
	for range 2 {
		if err := plainLife(naive, start); err != nil {
			return err
		}
		if err := ourLife(ctx, ours, dir, start); err != nil {
			return err
		}
	}
	if err := tell(out, naive, ours, perLife); err != nil {
		return err
	}
	fmt.Fprintln(out, "  The plain one forgets its last time. pawl begins above a mark in its store.")
	return nil
}

// plainLife makes an ID in each millisecond of a second.
func plainLife(r *result, now time.Time) error {
	p := plain{clock: func() time.Time { return now }}
	for range perLife {
		made, err := p.next()
		if err != nil {
			return err
		}
		r.ids = append(r.ids, made)
		now = now.Add(time.Millisecond)
	}
	return nil
}

func ourLife(ctx context.Context, r *result, dir string, start time.Time) error {
	client, end, err := connect(ctx, dir)
	if err != nil {
		return err
	}
	defer end()
	marks, err := id.Values(client, nil)
	if err != nil {
		return err
	}
	g, err := snowflake.New(ctx, client, marks, "orders", &snowflake.Options{Clock: func() time.Time { return start }})
	if err != nil {
		return err
	}
	made := make([]int64, perLife)
	_, err = g.NextN(ctx, made)
	r.ids = append(r.ids, made...)
	return errors.Join(err, g.Close(ctx))
}
