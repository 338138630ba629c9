package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

func newResize(s *store) *cobra.Command {
	return &cobra.Command{
		Use:   "resize NAME PERMITS",
		Short: "Change how many may hold a semaphore",
		Long: `Give the semaphore NAME this number of permits, whatever its users say with -n,
also while it is in use and for all who come later.

Permits that are added go at once to those who wait, in order. Nobody is evicted:
with fewer permits than are held it shrinks as holders leave, and who waits for
more permits than are left is let in when it is alone. A process that runs
under NAME or uses it as a library learns of the number within a third of its
TTL, or when it meets one that knows it.

The number stays in the store until another one is said. etcd, ZooKeeper, Redlock and
row mode cannot carry it: 64.`,
		Example: "  pawl resize reindex 4",
		Args:    takes(2, 2),
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			if err := pawl.CheckName(args[0]); err != nil {
				return err
			}
			permits, err := strconv.Atoi(args[1])
			if err != nil || permits < 1 || permits > pawl.MaxPermits {
				return usageError("PERMITS is %q: 1 to %d are allowed", args[1], pawl.MaxPermits)
			}
			return s.within(cmd.Context(), func(ctx context.Context, eng engine.Engine) error {
				return ask(ctx, func(ctx context.Context) error {
					return resize(ctx, eng, args[0], permits, cmd.OutOrStdout())
				})
			})
		}),
	}
}

func resize(ctx context.Context, eng engine.Engine, name string, permits int, w io.Writer) (err error) {
	client, err := pawl.New(ctx, eng, &pawl.Options{TTL: max(defaultTTL, eng.Caps().MinTTL), Label: label("resize")})
	if err != nil {
		return err
	}
	defer func() {
		farewell, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer cancel()
		err = errors.Join(err, client.Close(farewell))
	}()
	if err := client.Semaphore(name, permits).Resize(ctx, permits); err != nil {
		return err
	}
	r, err := eng.Show(ctx, name)
	if err != nil {
		return err
	}
	granted, waiting := split(r)
	unit := "permits"
	if permits == 1 {
		unit = "permit"
	}
	_, err = fmt.Fprintf(w, "%s: %d %s, %d held, %d waiting\n", printable(name), permits, unit, permitsHeld(granted), len(waiting))
	return err
}

// permitsHeld is how many permits are held: the claims of one owner share theirs.
func permitsHeld(granted []engine.ClaimInfo) (n int64) {
	heaviest := make(map[string]int64)
	for _, c := range granted {
		n += max(0, c.Weight-heaviest[c.Owner])
		heaviest[c.Owner] = max(heaviest[c.Owner], c.Weight)
	}
	return n
}
