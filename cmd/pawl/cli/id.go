package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const idHelp = `Make IDs that are unique over processes, machines, restarts and clocks, one ID a line.

  uuid4, uuid7  need no store; those of version 7 begin with the time
  snowflake     63 bits of time, worker and sequence; the store gives the worker its number
  segment       numbers from a counter in the store or, with --db, in a database
  sequence      numbers from one or more databases, of which some may fail
  redis         numbers from a counter in Redis, whose mark is in the store
  readable      IDs to read and type, as ORD-20261122-0000123-8

"pawl help id KIND" tells the promises and needs of each kind. Numbers that were made and
not printed are gaps, and are never made again. "pawl id serve" serves IDs to programs in
other languages, and "pawl id explain" prints the parts of an ID.

Exit codes:
    0  success, also when the reader of the output has gone
   64  wrong usage, or a store that cannot carry the kind
   69  the store is unavailable, or there are no numbers left
   70  internal error
  128+n  ended by signal n`

func newID(s *store) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "id",
		Short:   "Make, serve and explain IDs",
		Long:    idHelp,
		Example: "  pawl id uuid7\n  pawl id segment orders -n 3",
		Args:    cobra.NoArgs,
		RunE:    verb(func(*cobra.Command, []string) error { return usageError("a kind is missing (try: pawl help id)") }),
	}
	for _, k := range idKinds {
		cmd.AddCommand(newIDKind(s, k))
	}
	cmd.AddCommand(newIDExplain(), newIDServe(s))
	return cmd
}

// newIDKind is the verb that prints IDs of a kind.
func newIDKind(s *store, k idKind) *cobra.Command {
	o := &idOptions{store: s}
	count := int64(1)
	use, args := k.name, 0
	if k.named {
		use, args = k.name+" NAME", 1
	}
	cmd := &cobra.Command{
		Use:   use,
		Short: k.short,
		Long:  k.long,
		Args:  takes(args, args),
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			if count < 1 || count > mostIDs {
				return usageError("-n is %d: 1 to %d are allowed", count, int64(mostIDs))
			}
			if err := o.complete(k); err != nil {
				return err
			}
			name := strings.Join(args, "")
			if err := k.checkName(name); err != nil {
				return err
			}
			return o.print(cmd.Context(), k, name, count, cmd.OutOrStdout())
		}),
	}
	cmd.Flags().Int64VarP(&count, "count", "n", 1, "how many IDs")
	o.addFlags(cmd, k.flags, k.database)
	return cmd
}

const (
	mostIDs  = 1_000_000_000
	idBatch  = 10_000           // how many IDs are made and printed at a time
	idWithin = 20 * time.Second // for a batch: longer than a store that may have forgotten waits for its clients
)

// print prints IDs until there are enough, a signal comes, or the reader has gone.
func (o *idOptions) print(ctx context.Context, k idKind, name string, count int64, w io.Writer) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	err := o.with(ctx, k, []string{name}, func(makers map[string]lines) error {
		return printIDs(ctx, makers[name], count, heeding{ctx, w})
	})
	if err == nil || readerGone(err) {
		return nil
	}
	return bySignal(ctx, err)
}

func printIDs(ctx context.Context, from lines, count int64, w io.Writer) error {
	var text []byte
	for count > 0 {
		var got int
		err := askWithin(ctx, idWithin, func(ctx context.Context) (err error) {
			text, got, err = from(ctx, text[:0], int(min(count, idBatch)))
			return err
		})
		count -= int64(got)
		if got > 0 {
			if _, err := w.Write(text); err != nil {
				return fmt.Errorf("print IDs: %w", outputError{err})
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
