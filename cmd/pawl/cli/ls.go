package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

// watchEvery is how often ls --watch looks.
const watchEvery = time.Second

func newLs(s *store) *cobra.Command {
	var asJSON, watch bool
	cmd := &cobra.Command{
		Use:   "ls [PREFIX]",
		Short: "List the names that have a holder or a waiter",
		Long: `List the names that begin with PREFIX and have a holder or a waiter.

HELD counts the holders of a lock, or the taken permits of a semaphore. FOR is the
time for which the first holder has held. LEFT is how long its session lives in the
store without a further heartbeat. The store's clock counts both, and "unknown" is a
time that the store does not tell. A "kept" holder has ended, and its --hold-for has
not. The announcement of an election's leader stands in quotes.

--json prints one object a line, as "pawl show --json" does, in no order, each as
soon as the store answers. If no name is known because the store may have forgotten
locks, --json prints one object with "grace" alone. --watch repeats the list each second, also while the store
does not answer. To interrupt --watch is no error.`,
		Args: takes(0, 1),
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			l := &lister{prefix: append(args, "")[0], asJSON: asJSON, w: cmd.OutOrStdout()}
			if watch { // a store that does not exist yet cannot be watched
				return s.operating(engine.Existing(cmd.Context()), untilInterrupted(l.watch))
			}
			return s.reading(cmd.Context(), l.list)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	cmd.Flags().BoolVar(&watch, "watch", false, "look again each second until interrupted")
	return cmd
}

// lister is a run of ls.
type lister struct {
	prefix string
	asJSON bool
	clear  string // the sequence that clears the screen
	w      io.Writer
}

// untilInterrupted gives watch a context that INT or TERM ends, which is no error. A reader of the output that does not read does
// not hold up that end.
func untilInterrupted(watch func(context.Context, *pawl.Client) error) func(context.Context, *pawl.Client) error {
	return func(ctx context.Context, client *pawl.Client) error {
		ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		done := make(chan error, 1)
		go func() { done <- watch(ctx, client) }()
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			soon(closeWithin, func() { <-done })
			return nil
		}
	}
}

func (l *lister) watch(ctx context.Context, client *pawl.Client) error {
	if _, terminal := terminalWidth(l.w); terminal && !l.asJSON {
		l.clear = "\x1b[H\x1b[2J"
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		err := l.list(ctx, client)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, pawl.ErrUnavailable):
			complain(err)
		case err != nil:
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// list prints a table at once, so that a screen does not flicker. list prints objects as they come.
func (l *lister) list(ctx context.Context, client *pawl.Client) error {
	var all []seen
	encoder, known := json.NewEncoder(l.w), false
	for is, err := range withLeaders(ctx, client, client.List(ctx, l.prefix)) {
		switch {
		case err != nil && !l.asJSON && len(all) > 0: // a part of the list is better than nothing
			return errors.Join(l.print(all), err)
		case err != nil:
			return err
		case !l.asJSON:
			all = append(all, is)
			continue
		}
		if err := encoder.Encode(viewOf(is)); err != nil {
			return err
		}
		known = true
	}
	if !l.asJSON {
		if err := l.print(all); err != nil {
			return err
		}
	}
	if known || len(all) > 0 {
		return nil
	}
	return l.grace(ctx, client, encoder)
}

// grace tells of a restart grace, which may be why no holder is known.
func (l *lister) grace(ctx context.Context, client *pawl.Client, encoder *json.Encoder) error {
	r, err := client.Show(ctx, cmp.Or(l.prefix, "any"))
	switch {
	case errors.Is(err, pawl.ErrInvalid): // no name begins with such a prefix
		return nil
	case err != nil:
		return err
	case !r.Grace.On():
		return nil
	case l.asJSON:
		return encoder.Encode(struct {
			Grace *graceView `json:"grace"`
		}{graceOf(r)})
	}
	_, err = fmt.Fprintf(l.w, "%s\n", graceText(r))
	return err
}

func (l *lister) print(all []seen) error {
	slices.SortFunc(all, func(a, b seen) int { return cmp.Compare(a.Name, b.Name) })
	rows := [][]string{{"NAME", "KIND", "HELD", "WAITING", "HOLDER", "TOKEN", "FOR", "LEFT"}}
	for _, r := range all {
		rows = append(rows, lsRow(r))
	}
	if _, err := io.WriteString(l.w, l.clear); err != nil {
		return err
	}
	if err := table(l.w, rows); err != nil {
		return err
	}
	for _, r := range all { // each of them says so
		if r.Grace.On() {
			_, err := fmt.Fprintf(l.w, "%s\n", graceText(r.Resource))
			return err
		}
	}
	return nil
}

func lsRow(r seen) []string {
	all := holders(r.Resource)
	held, holder, token, since, left := strconv.Itoa(len(all)), "-", "-", "-", "-"
	if r.Permits > 0 {
		taken := 0
		for _, p := range all {
			taken += p.Permits
		}
		held = fmt.Sprintf("%d/%d", taken, r.Permits)
	}
	if len(all) > 0 {
		first := all[0]
		holder, token, since, left = named(first, r.leader), first.Token.String(), span(first.Held), span(first.Left)
		if more := len(all) - 1; more > 0 {
			holder += fmt.Sprintf(" (+%d)", more)
		}
	}
	return []string{printable(r.Name), kind(r.Resource), held, strconv.Itoa(len(r.Waiters)), holder, token, since, left}
}

// named names a holder, with its announcement as a leader.
func named(p pawl.Party, leader *string) string {
	text := printable(p.Label)
	if p.Kept {
		text += " (kept)"
	}
	if leader != nil && *leader != p.Label {
		text += " " + strconv.Quote(*leader)
	}
	return text
}
