// Ids shows how two usual makers of IDs repeat an ID, and that those of pawl do not under the same
// fault. A plain snowflake restarts while its clock steps back. A bare INCR goes on in a Redis that
// was killed and has lost its last second.
//
//	go run ./examples/ids
//	go run ./examples/ids -redis /usr/local/bin/redis-server
//
// The example starts a private Redis, and ends it. Without redis-server that part is left out. The
// marks of pawl are in a SQLite file of its own. Marks can be in any store that keeps its data.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/sqliteengine"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "ids:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("ids", flag.ContinueOnError)
	given := flags.String("redis", "", "the `PROGRAM` to start as a private Redis (default redis-server of the PATH)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "pawl-ids-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := clockStepsBack(ctx, dir, out); err != nil {
		return fmt.Errorf("snowflake: %w", err)
	}
	program, err := findRedis(*given)
	if err != nil {
		return err
	}
	if program == "" {
		fmt.Fprintln(out, "\nRedis was left out: no redis-server is on the PATH. Name one by -redis PROGRAM.")
		return nil
	}
	redis, err := startRedis(ctx, program, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, redis.stop()) }()
	return redisForgets(ctx, redis, dir, out)
}

// findRedis returns the program, or "" if the user named none and there is none.
func findRedis(given string) (string, error) {
	if given != "" {
		return exec.LookPath(given)
	}
	program, err := exec.LookPath("redis-server")
	if errors.Is(err, exec.ErrNotFound) {
		return "", nil
	}
	return program, err
}

// connect returns a client of the store that keeps the marks.
func connect(ctx context.Context, dir string) (client *pawl.Client, end func(), err error) {
	store, err := sqliteengine.New(ctx, filepath.Join(dir, "marks.db"), nil)
	if err != nil {
		return nil, nil, err
	}
	client, err = pawl.New(ctx, store, nil)
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return client, func() {
		client.Close(context.WithoutCancel(ctx)) //nolint:errcheck // its session ends anyway
		store.Close()
	}, nil
}

// result is the IDs of one maker, in the order in which they were made.
type result struct {
	maker string
	ids   []int64
}

// twice returns how many IDs had been made before, and the first of them.
func (r *result) twice() (n int, first int64) {
	seen := make(map[int64]bool)
	for _, id := range r.ids {
		if seen[id] {
			if n == 0 {
				first = id
			}
			n++
		}
		seen[id] = true
	}
	return n, first
}

// tell prints both results. tell fails if they are not what this program is to show.
func tell(out io.Writer, plain, ours *result, want int) error {
	var wrong []error
	for _, row := range []struct {
		*result
		want int
	}{{plain, want}, {ours, 0}} {
		n, first := row.twice()
		said := "none was made twice"
		if n > 0 {
			said = fmt.Sprintf("%d were made twice, the first is %d", n, first)
		}
		fmt.Fprintf(out, "  %-15s  %d IDs: %s\n", row.maker, len(row.ids), said)
		if n != row.want {
			wrong = append(wrong, fmt.Errorf("%s: %d IDs were made twice, not %d", row.maker, n, row.want))
		}
	}
	return errors.Join(wrong...)
}
