package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/redisid"
)

// server is a Redis that this program may kill.
type server interface {
	url() string
	// crash kills the server and starts it again. The data is then that of its last snapshot.
	crash(ctx context.Context) error
}

const (
	kept    = 100  // IDs before the snapshot
	lost    = 50   // IDs after the snapshot
	reserve = 1000 // IDs that the mark covers at a time
)

// redisForgets counts in two ways in a Redis that is killed.
func redisForgets(ctx context.Context, redis server, dir string, out io.Writer) error {
	fmt.Fprintf(out, "\nREDIS: it is killed, and comes back with its snapshot, without the last %d IDs\n", lost)
	client, end, err := connect(ctx, dir)
	if err != nil {
		return err
	}
	defer end()
	marks, err := id.Values(client, nil)
	if err != nil {
		return err
	}
	both := &counters{redis: redis, mark: marks.Mark("orders"), naive: &result{maker: "bare INCR"}, ours: &result{maker: "pawl"}}
	for _, step := range []func() error{
		func() error { return both.count(ctx, kept, true) },
		func() error { return both.count(ctx, lost, false) },
		func() error { return redis.crash(ctx) },
		func() error { return both.count(ctx, lost, false) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("redis: %w", err)
		}
	}
	if err := tell(out, both.naive, both.ours, lost); err != nil {
		return err
	}
	fmt.Fprintf(out, "  INCR goes on from the snapshot, at %d. pawl notices the restart and goes on above its mark, at %d.\n",
		both.naive.ids[kept+lost], both.ours.ids[kept+lost])
	return nil
}

// counters are both ways to count in one Redis.
type counters struct {
	redis       server
	mark        id.Mark
	naive, ours *result
}

// count makes n IDs in each way, over a connection of its own.
func (c *counters) count(ctx context.Context, n int, snapshot bool) error {
	options, err := rueidis.ParseURL(c.redis.url())
	if err != nil {
		return err
	}
	options.DisableCache = true
	client, err := rueidis.NewClient(options)
	if err != nil {
		return err
	}
	defer client.Close()
	counter, err := redisid.New(client, "ids:pawl", &redisid.Options{Mark: c.mark, Ahead: reserve})
	if err != nil {
		return err
	}
	ours := id.NewStrict(counter)
	for range n {
		bare, err := client.Do(ctx, client.B().Incr().Key("ids:bare").Build()).AsInt64()
		if err != nil {
			return errors.Join(err, counter.Close(ctx))
		}
		guarded, err := ours.Next(ctx)
		if err != nil {
			return errors.Join(err, counter.Close(ctx))
		}
		c.naive.ids, c.ours.ids = append(c.naive.ids, bare), append(c.ours.ids, guarded)
	}
	if snapshot {
		err = client.Do(ctx, client.B().Arbitrary("SAVE").Build()).Error()
	}
	return errors.Join(err, counter.Close(ctx))
}
