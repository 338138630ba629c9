package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl/engine"
)

// watchEvery is how often ls --watch looks.
const watchEvery = time.Second

func newLs(s *store) *cobra.Command {
	var asJSON, watch bool
	cmd := &cobra.Command{
		Use:   "ls [PREFIX]",
		Short: "List what is held or waited for",
		Long: `List the names that are held or waited for, those that begin with PREFIX.

HELD counts the holders of a lock, and the permits that are taken of a
semaphore. AGE is since the first holder asked for it.

--json prints one object a line, as "pawl show --json" does. --watch does it
again each second until it is interrupted, which is no error.`,
		Args: takes(0, 1),
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			prefix := append(args, "")[0]
			return s.within(cmd.Context(), func(ctx context.Context, eng engine.Engine) error {
				if watch {
					return watchResources(ctx, eng, prefix, asJSON, cmd.OutOrStdout())
				}
				return listResources(ctx, eng, prefix, asJSON, cmd.OutOrStdout(), "")
			})
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	cmd.Flags().BoolVar(&watch, "watch", false, "look again each second until interrupted")
	return cmd
}

func watchResources(ctx context.Context, eng engine.Engine, prefix string, asJSON bool, w io.Writer) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	clear := ""
	if _, terminal := terminalWidth(w); terminal && !asJSON {
		clear = "\x1b[H\x1b[2J"
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		err := listResources(ctx, eng, prefix, asJSON, w, clear)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// listResources prints everything at once, so that a screen does not flicker.
func listResources(ctx context.Context, eng engine.Engine, prefix string, asJSON bool, w io.Writer, clear string) error {
	resources, err := readResources(ctx, eng, prefix)
	if err != nil {
		return err
	}
	if asJSON {
		encoder := json.NewEncoder(w)
		for _, r := range resources {
			if err := encoder.Encode(viewOf(r)); err != nil {
				return err
			}
		}
		return nil
	}
	rows := [][]string{{"NAME", "KIND", "HELD", "WAITING", "HOLDER", "TOKEN", "AGE"}}
	for _, r := range resources {
		rows = append(rows, lsRow(r))
	}
	if _, err := io.WriteString(w, clear); err != nil {
		return err
	}
	return table(w, rows)
}

func lsRow(r engine.Resource) []string {
	granted, waiting := split(r)
	held, holder, token, since := strconv.Itoa(len(granted)), "-", "-", "-"
	if r.Kind == engine.KindSemaphore {
		var taken int64
		for _, c := range granted {
			taken += c.Weight
		}
		held = fmt.Sprintf("%d/%d", taken, r.Capacity)
	}
	if len(granted) > 0 {
		first := granted[0]
		holder, token, since = printable(first.Label), first.Token.String(), age(first)
		if more := len(granted) - 1; more > 0 {
			holder += fmt.Sprintf(" (+%d)", more)
		}
	}
	return []string{printable(r.Name), kind(r), held, strconv.Itoa(len(waiting)), holder, token, since}
}

func readResources(ctx context.Context, eng engine.Engine, prefix string) (all []engine.Resource, err error) {
	err = ask(ctx, func(ctx context.Context) error {
		for name, err := range eng.List(ctx, prefix) {
			if err != nil {
				return err
			}
			r, err := eng.Show(ctx, name)
			if err != nil {
				return err
			}
			if len(r.Claims) > 0 { // else it has gone meanwhile
				all = append(all, r)
			}
		}
		return nil
	})
	slices.SortFunc(all, func(a, b engine.Resource) int { return cmp.Compare(a.Name, b.Name) })
	return all, err
}
