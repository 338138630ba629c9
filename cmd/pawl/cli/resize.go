package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
)

// ownNames begin the names of elections and other primitives.
const ownNames = "pawl:"

func newResize(s *store) *cobra.Command {
	o := &resizing{}
	cmd := &cobra.Command{
		Use:   "resize NAME PERMITS",
		Short: "Change the number of permits of a semaphore",
		Long: `Give the semaphore NAME this number of permits. The number overrides the -n of its
users, also while the semaphore is in use and for all later users.

Waiters get added permits at once, in order. Nobody is evicted: the semaphore shrinks
as holders leave. A waiter for more permits than are left is let in when it is
alone. Other processes that use NAME learn the number within a third of their TTL, or
when they meet a process that knows the number.

The number stays in the store until the next resize, and "pawl show" shows it.
--reset takes the number back: PERMITS must then be the -n of the users, which counts
again.

A NAME without holder, waiter and number may be a typing error: resize refuses that NAME
without --unused.

etcd, ZooKeeper, Redlock and row mode do not resize: 64.`,
		Example: "  pawl resize reindex 4\n  pawl resize --reset reindex 2",
		Args:    takes(2, 2),
		RunE: verb(func(cmd *cobra.Command, args []string) (err error) {
			if err := pawl.CheckName(args[0]); err != nil {
				return err
			}
			if strings.HasPrefix(args[0], ownNames) {
				return usageError("the name %q is pawl's own: names that begin with %s are for its primitives", args[0], ownNames)
			}
			o.name = args[0]
			o.permits, err = strconv.Atoi(args[1])
			if err != nil || o.permits < 1 || o.permits > pawl.MaxPermits {
				return usageError("PERMITS is %q: 1 to %d are allowed", args[1], pawl.MaxPermits)
			}
			return s.operating(cmd.Context(), func(ctx context.Context, client *pawl.Client) error {
				return ask(ctx, func(ctx context.Context) error { return o.do(ctx, client, cmd.OutOrStdout()) })
			})
		}),
	}
	cmd.Flags().BoolVar(&o.reset, "reset", false, "take back the stored number: the -n of the users, PERMITS, counts again")
	cmd.Flags().BoolVar(&o.unused, "unused", false, "also when nobody uses NAME")
	return cmd
}

// resizing is a run of resize.
type resizing struct {
	name          string
	permits       int
	reset, unused bool
}

func (o *resizing) do(ctx context.Context, client *pawl.Client, w io.Writer) error {
	semaphore := client.Semaphore(o.name, o.permits)
	r, err := client.Show(ctx, o.name)
	if err != nil {
		return err
	}
	was, err := semaphore.Resized(ctx)
	switch {
	case err != nil:
		return err
	case r.Kind == "" && was == 0 && o.reset:
		return usageError("resize %q: no number is stored, so none is taken back", o.name)
	case r.Kind == "" && was == 0 && !o.unused:
		return usageError("resize %q: the name has no holder, no waiter and no stored number: check the name, or say --unused", o.name)
	case o.reset:
		err = semaphore.Reset(ctx)
	default:
		err = semaphore.Resize(ctx, o.permits)
	}
	if err != nil {
		return err
	}
	if r, err = client.Show(ctx, o.name); err != nil {
		return err
	}
	unit := "permits"
	if o.permits == 1 {
		unit = "permit"
	}
	was = 0
	for _, p := range holders(r) {
		was += p.Permits
	}
	_, err = fmt.Fprintf(w, "%s: %d %s, %d held, %d waiting\n", printable(o.name), o.permits, unit, was, len(r.Waiters))
	return err
}
